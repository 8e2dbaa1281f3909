package httpapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/request"
)

const pathStartSearch = pathConversations + "/start-tasks/search"

// large starts n conversations with messages of 1 MB for alice.
func (h *harness) large(n int) (ids []string) {
	h.t.Helper()
	body := sprint(`{"initial_message":{"content":[{"type":"text","text":%q}]}}`, strings.Repeat("x", 1_000_000))
	for range n {
		var task struct{ ID string }
		h.do(h.alice, "POST", pathConversations, body).want(h.t, 200).json(h.t, &task)
		ids = append(ids, task.ID)
	}
	return ids
}

// A page of large items is shorter than its limit, and the pages together hold each item once.
func TestPage_IsBoundedInBytes(t *testing.T) {
	t.Parallel()
	h := newHarness(t).withSpec().raised()
	ids := h.large(6)
	for _, order := range []fsm.StartTaskOrder{fsm.StartTaskCreated, fsm.StartTaskCreatedDesc} {
		var got []string
		for token, pages := "", 0; pages == 0 || token != "" && pages < 9; pages++ {
			res := h.do(h.alice, "GET", pathStartSearch+"?sort_order="+string(order)+"&page_id="+url.QueryEscape(token),
				"").want(t, 200)
			if len(res.body) > request.MaxPageBytes+1000 {
				t.Errorf("a page has %d bytes", len(res.body))
			}
			var page struct {
				Items []struct{ ID string }
				Next  *string `json:"next_page_id"`
			}
			if res.json(t, &page); page.Next == nil {
				token = ""
			} else {
				token = *page.Next
			}
			for _, one := range page.Items {
				got = append(got, one.ID)
			}
		}
		if order == fsm.StartTaskCreatedDesc {
			slices.Reverse(got)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%s: the pages hold %v, want %v", order, got, ids)
		}
	}
	batch := func(list []string) string {
		return pathConversations + "/start-tasks?ids=" + strings.Join(list, "&ids=")
	}
	h.do(h.alice, "GET", batch(ids), "").want(t, 200)
	h.do(h.alice, "GET", batch(slices.Repeat(ids[:1], 17)), "").want(t, 400)
	if h.server.calls.Answers.Used() != 0 {
		t.Errorf("%d bytes are still reserved", h.server.calls.Answers.Used())
	}
}

// stuckWriter is the connection of a client that reads nothing until it is released.
type stuckWriter struct {
	*httptest.ResponseRecorder
	writing  chan struct{}
	release  chan struct{}
	begun    bool
	deadline time.Time
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	if !w.begun {
		w.begun = true
		w.writing <- struct{}{}
	}
	<-w.release
	return w.ResponseRecorder.Write(b)
}

func (w *stuckWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

// One user's slow readers get 503 above the user's share, small answers and other users pass, and
// what ended gives its share back. Each slow reader has a deadline.
func TestPage_SlowReadersAreBounded(t *testing.T) {
	t.Parallel()
	h := newHarness(t).withSpec().raised()
	h.large(5)
	ask := func(w http.ResponseWriter) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, pathStartSearch, nil)
		r.Header.Set("Authorization", "Bearer "+h.alice)
		h.server.Handler().ServeHTTP(w, r)
	}
	var stuck []*stuckWriter
	done := make(chan struct{})
	for {
		w := &stuckWriter{
			ResponseRecorder: httptest.NewRecorder(),
			writing:          make(chan struct{}),
			release:          make(chan struct{}),
		}
		go func() { ask(w); done <- struct{}{} }()
		<-w.writing
		if len(stuck) > 20 {
			t.Fatal("any number of slow readers is served")
		}
		if stuck = append(stuck, w); w.deadline.IsZero() {
			break // a small answer: a refusal
		}
		if left := time.Until(w.deadline); left > time.Minute {
			t.Errorf("a slow reader has %s", left)
		}
	}
	if n := len(stuck) - 1; n != limits.UserBudget/request.MaxPageBytes {
		t.Errorf("%d slow readers of a full page were served", n)
	}
	h.do(h.alice, "GET", pathSandboxes+"/search", "").want(t, 200)
	h.do(h.alice, "GET", pathStartSearch+"?limit=1", "").want(t, 503)
	h.do(h.bob, "GET", pathStartSearch, "").want(t, 200)
	for _, w := range stuck {
		close(w.release)
		<-done
	}
	last := stuck[len(stuck)-1]
	var refusal struct{ Detail string }
	if err := json.Unmarshal(last.Body.Bytes(), &refusal); err != nil || last.Code != 503 ||
		last.Header().Get("Retry-After") != "1" || refusal.Detail == "" {
		t.Errorf("%d %v %s", last.Code, last.Header(), last.Body)
	}
	h.do(h.alice, "GET", pathStartSearch, "").want(t, 200)
}
