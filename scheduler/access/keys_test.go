package access

import (
	"strings"
	"testing"
)

func TestBase62(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		s := Base62(16)
		if seen[s] || len(s) < 18 || len(s) > 22 || strings.Trim(s, base62Digits) != "" {
			t.Fatalf("%q", s)
		}
		seen[s] = true
	}
}
