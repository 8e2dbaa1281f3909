package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// putMark replaces a store's mark.
func putMark(t testing.TB, marks scheduler.Marks, change func(m *fsm.Mark)) (was fsm.Mark) {
	t.Helper()
	eventually(t, "the mark is put there", func() error {
		mark, cas, found, err := marks.ReadMark(t.Context())
		if err != nil || !found {
			return fmt.Errorf("found %v: %w", found, err)
		}
		was = mark
		change(&mark)
		return marks.WriteMark(context.WithoutCancel(t.Context()), mark, cas)
	})
	return was
}

// A running cluster finds a mark of a newer history, in either store. Each leader finds it,
// transfers leadership, does not lead again, and says why. Nothing is stopped. When the mark is
// gone the nodes lead again without help.
func TestDev_NewerMark_NobodyLeads(t *testing.T) {
	t.Parallel()
	for _, store := range []string{fsm.StoreNomad, fsm.StoreVault} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			r := startDev(t, t.TempDir())
			var marks scheduler.Marks = r.runner
			if store == fsm.StoreVault {
				marks = newSecretStore(r.sealed, r.nodes[0].app.store.View, r.log)
			}
			eventually(t, "marks are kept", func() error {
				if r.nodes[0].app.store.View().Marked(store) {
					return nil
				}
				return errors.New("no mark yet")
			})
			id := r.all[0].startSandbox(t)
			info := r.all[0].awaitSandbox(t, id, "RUNNING")
			file := keepFile(t, info, "", "kept")
			clusterID := r.nodes[0].app.store.View().ClusterID()

			was := putMark(t, marks, func(m *fsm.Mark) { m.History, m.Epoch = "elsewhere", m.Epoch+1e6 })
			// Each next leader checks at once; one that stays, within a minute.
			from := r.leader(t)
			if err := r.nodes[from].app.node.TransferLeadership(t.Context(), ""); err != nil {
				t.Logf("the leader stays and checks the mark within a minute: %v", err)
			}
			refused := 0
			eventually(t, "those that led must not", func() error {
				refused = 0
				for i, n := range r.nodes {
					newer := (*scheduler.NewerHistoryError)(nil)
					if why := n.app.node.MustNotLead(); why == nil {
						continue
					} else if !errors.As(why, &newer) || newer.Store != store {
						t.Fatalf("%s must not lead: %v", n.name, why)
					}
					refused++
					a, err := r.all[i].try(http.MethodGet, "/ready", nil)
					if err != nil || a.status != http.StatusServiceUnavailable ||
						!strings.Contains(string(a.body), "went on elsewhere") {
						return fmt.Errorf("%s: /ready: %s, %w", n.name, a, err)
					}
				}
				if refused < len(r.nodes) {
					return fmt.Errorf("%d of %d", refused, len(r.nodes))
				}
				return nil
			})
			jobs, err := r.runner.List(t.Context(), clusterID)
			if err != nil || len(jobs) != 1 || !jobs[0].Exists || jobs[0].Stopped {
				t.Errorf("jobs meanwhile: %+v, %v", jobs, err)
			}

			putMark(t, marks, func(m *fsm.Mark) { *m = was })
			eventually(t, "they may lead again", func() error {
				for _, n := range r.nodes {
					if why := n.app.node.MustNotLead(); why != nil {
						return why
					}
				}
				return nil
			})
			info = r.all[1].awaitSandbox(t, id, "RUNNING")
			if text := keptFile(t, info, file); text != "kept" {
				t.Errorf("the file holds %q", text)
			}
			second := r.all[2].startSandbox(t)
			r.all[0].awaitSandbox(t, second, "RUNNING")
			if hold := r.nodes[0].app.store.View().Hold(); hold != nil {
				t.Errorf("held: %+v", hold)
			}
		})
	}
}
