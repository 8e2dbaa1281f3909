package httpapi

import (
	"context"
	"errors"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// fullClients are twoClients, one of which has a sandbox, and whose trial of a move fails.
type fullClients struct {
	twoClients
	sandbox string
	fails   error
	tried   *[]string
}

func (f fullClients) Clients(ctx context.Context, cluster string) ([]SandboxClient, error) {
	list, err := f.twoClients.Clients(ctx, cluster)
	for i := range list {
		if list[i].ID == "ready" {
			list[i].Sandboxes = []string{f.sandbox, "of nobody"}
		}
	}
	return list, err
}

func (f fullClients) TryMove(_ context.Context, from string, _ []string, sandboxes []*fsm.Sandbox) error {
	for _, sb := range sandboxes {
		*f.tried = append(*f.tried, from+" "+sb.ID)
	}
	return f.fails
}

// TestClientDrain_AsksFirst: a drain that can't be done is refused with what is missing, and marks
// nothing. One that can is shown with how far it is, by the client and in the status.
func TestClientDrain_AsksFirst(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	var tried []string
	h.server.cfg.Clients = fullClients{sandbox: sb, fails: errors.New("the capability alloc-exec is missing"), tried: &tried}
	const path = pathOperator + "/clients/ready/drain"
	r := h.do(h.root, "POST", path, "").want(t, 409)
	if !strings.Contains(string(r.body), "nothing was paused: the capability alloc-exec is missing") {
		t.Errorf("it says %s", r.body)
	}
	if m := h.cluster.store.View().MarkOf("ready"); m.Mark != "" {
		t.Errorf("it is marked: %+v", m)
	}
	if len(tried) != 1 || tried[0] != "ready "+sb {
		t.Errorf("tried were %q", tried)
	}
	h.server.cfg.Clients = fullClients{sandbox: sb, tried: &tried}
	h.do(h.root, "POST", path, "").want(t, 200)
	m := h.cluster.store.View().MarkOf("ready")
	h.apply("", &fsm.ClientDrainBody{ID: "ready", Since: m.Since, Sandbox: sb, Failure: "no room"})
	for _, read := range []string{"/clients", "/status"} {
		r := h.do(h.root, "GET", pathOperator+read, "").want(t, 200)
		for _, want := range []string{`"drain":"stopped"`, `"stays":["` + sb + `"]`, `"failure":"no room"`} {
			if !strings.Contains(strings.ReplaceAll(string(r.body), ": ", ":"), want) {
				t.Errorf("%s lacks %s: %s", read, want, r.body)
			}
		}
	}
}

// TestOrphans_Lost: what a lost client still has is listed with its owner and its end, is counted to the
// owner, and goes when an operator deletes it, or with its sandbox.
func TestOrphans_Lost(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	h.apply("", &fsm.SandboxMoveBody{ID: sb, From: "gone"})
	before := h.cluster.store.View().Usage("alice").StateBytes
	h.apply("", &fsm.SandboxMovedBody{ID: sb, Attempt: 1, Home: fsm.Home{Volume: "v-2", Client: "other", Lost: true}, Left: "v-1"})
	if now := h.cluster.store.View().Usage("alice").StateBytes; now < before+512 {
		t.Errorf("alice keeps %d bytes with it, %d before", now, before)
	}
	r := string(h.do(h.root, "GET", pathOperator+"/orphans", "").want(t, 200).body)
	for _, want := range []string{`"kind":"lost"`, `"sandbox":"` + sb + `"`, `"owner":"alice"`, `"client":"gone"`, `"volume":"v-1"`, `"delete":false`} {
		if !strings.Contains(strings.ReplaceAll(r, ": ", ":"), want) {
			t.Errorf("the list lacks %s: %s", want, r)
		}
	}
	h.do(h.root, "DELETE", pathOperator+"/orphans/lost/v-9", "").want(t, 404)
	h.do(h.root, "DELETE", pathOperator+"/orphans/lost/v-1", "").want(t, 200)
	if o := h.cluster.store.View().Orphan(fsm.OrphanLost, "v-1"); o == nil || !o.Delete {
		t.Errorf("on record is %+v", o)
	}
	h.do(h.alice, "DELETE", "/api/v1/sandboxes/"+sb, "").want(t, 200)
	h.apply("", &fsm.SandboxRemoveBody{ID: sb})
	if o := h.cluster.store.View().Orphan(fsm.OrphanLost, "v-1"); o != nil {
		t.Errorf("it outlives its sandbox: %+v", o)
	}
}
