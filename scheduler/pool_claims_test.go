package scheduler

import (
	"log/slog"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// A claim that nothing waits for any more is forgotten, also while no pool is short.
func TestPools_OldClaimsAreForgotten(t *testing.T) {
	t.Parallel()
	store := fsm.NewStore()
	p := newPools(&Scheduler{store: store}, slog.New(slog.DiscardHandler))
	p.follow(store.View())
	p.claims["deleted"] = true
	p.round(t.Context(), store.View())
	if len(p.claims) != 0 {
		t.Errorf("%d claims are kept", len(p.claims))
	}
}
