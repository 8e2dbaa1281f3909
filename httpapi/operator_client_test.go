package httpapi

import (
	"context"
	"errors"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// fullClients are twoClients, one of which has a sandbox, and whose trial of a move fails.
type fullClients struct {
	twoClients
	sandbox string
	fails   error
	tried   []string
}

func (f *fullClients) Clients(ctx context.Context, cluster string) ([]wire.SandboxClient, error) {
	list, err := f.twoClients.Clients(ctx, cluster)
	for i := range list {
		if list[i].ID == "ready" {
			list[i].Sandboxes = []string{f.sandbox, "of nobody"}
		}
	}
	return list, err
}

func (f *fullClients) TryMove(_ context.Context, from string, _ []string, sandboxes []*fsm.Sandbox) error {
	for _, sb := range sandboxes {
		f.tried = append(f.tried, from+" "+sb.ID)
	}
	return f.fails
}

// TestClientDrain_UnderAHold: a drain that would move nothing is refused.
func TestClientDrain_UnderAHold(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Operator.Clients = &fullClients{} }).withSpec().withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	h.apply("", &fsm.HoldBeginBody{Findings: []fsm.Finding{{Kind: fsm.FindingRestored, Detail: "a test"}}})
	r := h.do(h.root, "POST", pathOperator+"/clients/ready/drain", "").want(t, 409)
	if !strings.Contains(string(r.body), "the cluster holds, and moves no workspace") {
		t.Errorf("it says %s", r.body)
	}
	if m := h.cluster.store.View().MarkOf("ready"); m.Mark != "" {
		t.Errorf("it is marked: %+v", m)
	}
}

// TestClientDrain_AsksFirst: a drain that can't be done is refused with what is missing, and marks
// nothing. One that can is shown with how far it is, by the client and in the status.
func TestClientDrain_AsksFirst(t *testing.T) {
	clients := &fullClients{fails: errors.New("the capability alloc-exec is missing")}
	h := newHarness(t, func(c *Config) { c.Operator.Clients = clients }).withSpec().withSettings()
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	clients.sandbox = sb
	const path = pathOperator + "/clients/ready/drain"
	r := h.do(h.root, "POST", path, "").want(t, 409)
	if !strings.Contains(string(r.body), "nothing was paused: the capability alloc-exec is missing") {
		t.Errorf("it says %s", r.body)
	}
	if m := h.cluster.store.View().MarkOf("ready"); m.Mark != "" {
		t.Errorf("it is marked: %+v", m)
	}
	if tried := clients.tried; len(tried) != 1 || tried[0] != "ready "+sb {
		t.Errorf("tried were %q", tried)
	}
	clients.fails = nil
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
