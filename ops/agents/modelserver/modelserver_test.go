package modelserver

import (
	"strings"
	"testing"
)

// Each behaviour has a name of its own, a maker and a source, and there are as many as promised.
func TestAll_NameTheirSource(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	documented := 0
	for _, b := range All() {
		if seen[b.Title()] || b.Name == "" || b.Maker == "" {
			t.Errorf("%q of %q has no name of its own, or no maker", b.Name, b.Maker)
		}
		seen[b.Title()] = true
		switch {
		case strings.HasPrefix(b.Source, "https://"), strings.Contains(b.Source, "documentation"):
			documented++
		case b.Source != FromMemory:
			t.Errorf("%q has the source %q", b.Name, b.Source)
		}
		if b.Refuse == nil && b.Answer == nil {
			t.Errorf("%q does nothing", b.Name)
		}
	}
	if len(seen) < 100 {
		t.Errorf("%d behaviours, want a hundred", len(seen))
	}
	t.Logf("%d behaviours, %d with a document", len(seen), documented)
}
