package agentserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent"
)

// keeper is a control plane that keeps events as the real one does, while it is not broken.
type keeper struct {
	mu     sync.Mutex
	ids    []string
	gaps   int
	broken int
}

func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !strings.HasSuffix(r.URL.Path, "/webhooks/events/"+convID) {
		return // titles
	}
	if k.broken > 0 {
		k.broken--
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	var list []struct{ ID string }
	at, err := strconv.Atoi(r.Header.Get(agent.EventPositionHeader))
	if json.NewDecoder(r.Body).Decode(&list) != nil || err != nil || len(list) == 0 {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	for i, e := range list {
		if slices.Contains(k.ids, e.ID) {
			continue
		}
		if at+i != len(k.ids) {
			k.gaps++
			w.Header().Set(agent.EventPositionHeader, strconv.Itoa(len(k.ids)))
			w.WriteHeader(http.StatusConflict)
			return
		}
		k.ids = append(k.ids, e.ID)
	}
}

func (k *keeper) kept() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.ids)
}

// TestWebhook_Events: all events of the file reach the control plane in their order, over an outage,
// a restart of the server and a control plane that lost the last ones.
func TestWebhook_Events(t *testing.T) {
	k := &keeper{broken: 2}
	up := httptest.NewServer(k)
	t.Cleanup(up.Close)
	dir := t.TempDir()
	change := func(c *config.Config) { c.Webhooks = []string{up.URL + "/api/v1/webhooks"} }
	s := serveAt(t, dir, change)
	s.want(201, "POST", "/api/conversations", createBody(t, convUID))
	have := func() (ids []string) {
		var page struct{ Items []struct{ ID string } }
		if err := json.Unmarshal([]byte(s.want(200, "GET", convPath+"/events/search?limit=100", "")), &page); err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Items {
			ids = append(ids, e.ID)
		}
		return ids
	}
	same := func() bool { return len(k.kept()) > 0 && slices.Equal(k.kept(), have()) }
	s.until("the events are kept", same)
	s.want(200, "POST", convPath+"/events", `{"role":"user","content":[{"type":"text","text":"more"}],"run":false}`)
	s.until("the next event is kept", same)

	k.mu.Lock()
	k.ids = k.ids[:1]
	k.mu.Unlock()
	s.want(200, "POST", convPath+"/events", `{"role":"user","content":[{"type":"text","text":"and more"}],"run":false}`)
	s.until("what was lost is kept again", same)
	if k.gaps == 0 {
		t.Error("nobody was told of a gap")
	}
}
