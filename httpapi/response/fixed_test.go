package response

import (
	"net/http"
	"testing"
)

// Every response shares the values: what a handler does to its header reaches no other.
func TestSetFixed_NoResponseChangesAnother(t *testing.T) {
	first, second := http.Header{}, http.Header{}
	SetFixed(first)
	SetFixed(second)
	for name := range first {
		first.Add(name, "more")
		first.Add(name, "and more")
		if got := second[name]; len(got) != 1 {
			t.Errorf("%s of another response is %q", name, got)
		}
		first.Set(name, "other")
		if got := second.Get(name); got == "other" {
			t.Errorf("%s of another response is %q", name, got)
		}
	}
	clean := http.Header{}
	SetFixed(clean)
	if clean.Get("Cache-Control") != second.Get("Cache-Control") || len(clean) != 4 {
		t.Errorf("a later response has %v", clean)
	}
}
