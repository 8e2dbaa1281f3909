package cluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/fsm"
)

// A handover is done when the named node leads, not when it was told to.
func TestNode_Transfer_SaysWhoWasElected(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	over, end := context.WithCancel(t.Context())
	end()
	mine := &leadership{id: n.id, ctx: over, end: end}
	for name, test := range map[string]struct{ leads, to, want string }{
		"nobody was named":     {"b.1", "", ""},
		"the named one":        {"b.1", "b", ""},
		"another":              {"c.1", "b", `node "c" was elected`},
		"nobody is known soon": {"", "b", "no leader is known yet"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		n.leaders.current = &leadership{id: raft.ServerID(test.leads), ctx: over, end: end}
		err := n.awaitSuccessor(ctx, mine, test.to)
		if (err == nil) != (test.want == "") || err != nil &&
			(fsm.CodeOf(err) != fsm.CodeConflict || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		cancel()
	}
}
