package cluster

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/cluster/records"
)

// A node announces its start only after the members accepted it. If they object, the node's true
// disk must still be able to start.
func TestNode_Hello_TellsNoStartBeforeTheGuard(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	n.records.Begin("nonce")
	if told := n.ownHello(n.Status()).Life; told != (records.Start{}) {
		t.Errorf("before the members were asked: %+v", told)
	}
	if err := n.guard(t.Context()); err != nil {
		t.Fatal(err)
	}
	if told := n.ownHello(n.Status()).Life; told != n.records.CurrentStart() || told.Seq == 0 {
		t.Errorf("after the guard: %+v", told)
	}
}

// tardy is a network whose members object late: to every start, or, with missing, only to entries
// that the disk lacks.
type tardy struct {
	unplugged
	missing bool
}

func (t tardy) Call(ctx context.Context, _, _ string, raw []byte) ([]byte, error) {
	var request beginRequest
	if err := json.Unmarshal(raw, &request); err != nil {
		return nil, err
	}
	select {
	case <-time.After(3 * guardTimeout):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if t.missing && request.Last > 100 {
		return []byte(`{}`), nil
	}
	return []byte(`{"objection":"it is an older copy"}`), nil
}

// A late objection to the start stops a running node. A late objection to what its disk lacked does
// not: the running node may have acknowledged more.
func TestNode_AskMembers_LateObjection(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]bool{"to the start": false, "to what was missing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := lonely(t)
				n.network, n.cfg.RetryJoin = tardy{missing: missing}, []string{"b:1"}
				began := time.Now()
				if err := n.askMembers(t.Context(), beginRequest{}); err != nil || time.Since(began) > guardTimeout {
					t.Fatalf("after %s: %v", time.Since(began), err)
				}
				time.Sleep(9 * guardTimeout)
				synctest.Wait()
				select {
				case err := <-n.broken:
					if missing || !strings.Contains(err.Error(), "it is an older copy") {
						t.Error(err)
					}
				default:
					if !missing {
						t.Error("the node runs on")
					}
				}
				n.stop()
				n.guarding.Wait()
			})
		})
	}
}
