package agentserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	// full takes no more, and says to each caller that it was asked.
	full  bool
	asked chan struct{}
}

func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !strings.HasSuffix(r.URL.Path, "/webhooks/events/"+convID) {
		return // titles
	}
	if k.full {
		select {
		case k.asked <- struct{}{}:
		default:
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return
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
		if at+i > len(k.ids) {
			k.gaps++
			w.Header().Set(agent.EventPositionHeader, strconv.Itoa(len(k.ids)))
			w.WriteHeader(http.StatusConflict)
			return
		}
		k.ids = append(k.ids, e.ID)
	}
	w.Header().Set(agent.EventPositionHeader, strconv.Itoa(len(k.ids)))
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

// TestKill_BetweenDiskAndWebhook: the server is killed while its disk has events that no call brought. Its
// next process sends them, and what is missing in the middle, although nobody touches the conversation.
func TestKill_BetweenDiskAndWebhook(t *testing.T) {
	k := &keeper{asked: make(chan struct{}, 1)}
	up := httptest.NewServer(k)
	t.Cleanup(up.Close)
	s := &killable{server: &server{t: t}, data: t.TempDir(), work: t.TempDir(), home: t.TempDir()}
	s.environ = []string{"OH_WEBHOOKS_0_BASE_URL=" + up.URL + "/api/v1/webhooks"}
	s.start()
	t.Cleanup(func() { s.kill(); endOrphans(s.data, nil) })
	// Without a run nothing opens the conversation after the restart.
	create := decodeJSON[map[string]any](t, createBody(t, convUID))
	delete(create, "initial_message")
	body, err := json.Marshal(create)
	if err != nil {
		t.Fatal(err)
	}
	s.want(201, "POST", "/api/conversations", string(body))
	s.want(200, "POST", convPath+"/events", `{"role":"user","content":[{"type":"text","text":"one"}],"run":false}`)
	ids := func() (ids []string) { // as the file has them, which touches nothing
		raw, err := os.ReadFile(filepath.Join(s.data, convID, "events.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if strings.HasSuffix(line, "\n") {
				ids = append(ids, decodeJSON[eventSeen](t, line).ID)
			}
		}
		return ids
	}
	s.until("the first events are kept", func() bool { return len(k.kept()) > 1 && slices.Equal(k.kept(), ids()) })
	k.mu.Lock()
	k.full = true
	k.mu.Unlock()
	s.want(200, "POST", convPath+"/events", `{"role":"user","content":[{"type":"text","text":"more"}],"run":false}`)
	<-k.asked
	s.kill()
	lost := ids()[0]
	k.mu.Lock()
	if len(k.ids) >= len(ids()) || k.ids[0] != lost {
		t.Fatalf("%v are kept before the restart, of %v", k.ids, ids())
	}
	k.full, k.ids = false, k.ids[1:] // the control plane lacks the first one, too
	first := k.ids[0]
	k.mu.Unlock()
	s.start() // and nobody asks for anything
	s.until("all events are kept", func() bool {
		got, want := k.kept(), ids()
		return k.kept()[0] == first && slices.Contains(got, lost) && slices.Equal(slices.Sorted(slices.Values(got)),
			slices.Sorted(slices.Values(want)))
	})
}
