package cluster

import (
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster/peernet"
)

func TestRequests_TravelInOrder(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 128)
	var many, fit []string
	for len(strings.Join(many, ",")) <= peernet.MaxRequests {
		many = append(many, long)
	}
	fit = slices.Repeat([]string{long}, peernet.MaxRequests/(len(long)+1))
	for _, c := range []struct{ sent, want []string }{
		{[]string{"a"}, []string{"a"}},
		{[]string{"", ""}, []string{"", ""}},
		{[]string{"a", "", "c"}, []string{"a", "", "c"}},
		{[]string{"", "b"}, []string{"", "b"}},
		{[]string{"no good", "b"}, []string{"", "b"}},
		{many, append(slices.Clone(fit), make([]string, len(many)-len(fit))...)},
	} {
		var batch []*proposal
		for _, id := range c.sent {
			batch = append(batch, &proposal{request: id})
		}
		text := requestsOf(batch)
		if len(text) > peernet.MaxRequests {
			t.Errorf("%d bytes", len(text))
		}
		if got := requestsIn(peernet.WithRequests(t.Context(), text), len(c.sent)); !slices.Equal(got, c.want) {
			t.Errorf("%q became %q", c.sent, got)
		}
	}
	// What a peer sends is not trusted to fit its commands.
	for text, want := range map[string][]string{
		"a,b,c":  {"a", "b"},
		"a":      {"a", ""},
		",,,":    {"", ""},
		"a\nb,b": {"", "b"},
	} {
		if got := requestsIn(peernet.WithRequests(t.Context(), text), 2); !slices.Equal(got, want) {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
