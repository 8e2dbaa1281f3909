package agentserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent"
)

// controlPlane records the webhooks that it is sent, and answers with its statuses in turn, the last
// for ever.
type controlPlane struct {
	mu       sync.Mutex
	statuses []int
	titles   []string
	keys     []string
}

func (p *controlPlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/api/v1/webhooks/events/") {
		return // TestWebhook_Events has them
	}
	var i struct{ ID, Title string }
	err := json.NewDecoder(r.Body).Decode(&i)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/api/v1/webhooks/conversations" {
		i.Title = "a bad request to " + r.URL.Path
	}
	p.titles, p.keys = append(p.titles, i.Title), append(p.keys, r.Header.Get(agent.KeyHeader))
	status := p.statuses[0]
	p.statuses = p.statuses[min(1, len(p.statuses)-1):]
	w.Header().Set("Location", "/elsewhere")
	w.WriteHeader(status)
}

func (p *controlPlane) sent() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.titles)
}

// TestWebhook_Title: a title reaches the control plane through the node that answers, although the
// first is down, another redirects, and it is not known there at first.
func TestWebhook_Title(t *testing.T) {
	down := httptest.NewServer(nil)
	down.Close()
	p := &controlPlane{statuses: []int{503, 404, 307, 200}}
	up := httptest.NewServer(p)
	t.Cleanup(up.Close)
	cfg, err := config.FromEnv([]string{agent.EnvAPIURLs + `=["` + down.URL + `","` + up.URL + `/"]`})
	if err != nil {
		t.Fatal(err)
	}
	s := serveAt(t, t.TempDir(), func(c *config.Config) { c.Webhooks = cfg.Webhooks })
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	const first = "Check the README" // the first message
	s.until("the title is accepted", func() bool { return len(p.sent()) == 4 })
	if got := p.sent(); !slices.Equal(got, []string{first, first, first, first}) {
		t.Errorf("sent %q", got)
	}
	if p.keys[0] != "other" {
		t.Errorf("the key is %q", p.keys[0])
	}
	s.want(200, "PATCH", convPath, `{"title":"Two"}`)
	s.until("the next title", func() bool { return len(p.sent()) == 5 && p.sent()[4] == "Two" })
}

// TestWebhook_Refused: a refusal ends the attempts, and the next state is sent.
func TestWebhook_Refused(t *testing.T) {
	p := &controlPlane{statuses: []int{422, 200}}
	up := httptest.NewServer(p)
	t.Cleanup(up.Close)
	s := serveAt(t, t.TempDir(), func(c *config.Config) { c.Webhooks = []string{up.URL + "/api/v1/webhooks"} })
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	s.until("the title is refused", func() bool { return len(p.sent()) == 1 })
	s.want(200, "PATCH", convPath, `{"title":"Two"}`)
	s.until("the next title", func() bool { return len(p.sent()) == 2 && p.sent()[1] == "Two" })
}

// TestWebhook_BeforeAPause: the call before a pause waits until the title is sent.
func TestWebhook_BeforeAPause(t *testing.T) {
	p := &controlPlane{statuses: []int{503, 200}}
	up := httptest.NewServer(p)
	t.Cleanup(up.Close)
	s := serveAt(t, t.TempDir(), func(c *config.Config) { c.Webhooks = []string{up.URL + "/api/v1/webhooks"} })
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	s.until("the title is refused", func() bool { return len(p.sent()) >= 1 })
	s.want(204, "POST", "/api/conversations/prepare-for-sandbox-pause", "")
	if got := p.sent(); len(got) != 2 {
		t.Errorf("sent %q before the pause", got)
	}
}
