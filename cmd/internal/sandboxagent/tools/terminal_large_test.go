package tools

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestTerminal_LargeOutput prints 20 MB, 100 MB in its large form. The ends are kept, in bounded memory.
func TestTerminal_LargeOutput(t *testing.T) {
	size := 20_000_000
	if os.Getenv("BIVOUAC_DRILL") == "long" {
		size *= 5
	}
	s, _ := opened(t, func(c *Config) {
		c.SoftTimeout = time.Minute
		c.Secrets = func() map[string]string { return map[string]string{"A": "012345678secret"} }
	})
	var before, after runtime.MemStats
	s.sh(t, args{"command": "true"})
	runtime.GC()
	runtime.ReadMemStats(&before)
	o := s.sh(t, args{"command": fmt.Sprintf("echo the beginning; yes 0123456789 | head -c %d; echo; echo the end", size)})
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := utf8.RuneCountInString(o.out()); n > maxOutput || n < maxOutput-100 || o.code() != 0 {
		t.Errorf("%d characters, %d", n, o.code())
	}
	if !strings.HasPrefix(o.out(), "the beginning\n0123456789\n") || !strings.HasSuffix(o.out(), "\nthe end") ||
		!strings.Contains(o.out(), "characters left out") {
		t.Errorf("the output is cut wrongly: %.100q", o.out())
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("%d bytes more are in use", grown)
	}
}
