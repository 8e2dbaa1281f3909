package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"bivouac.dev/bivouac/httpapi/limits"
)

// slowBody is a request whose body does not end before release.
type slowBody struct {
	*io.PipeWriter
	answer chan *httptest.ResponseRecorder
}

// begin sends a request with a slow body.
func (h *harness) begin(key string) *slowBody {
	r, w := io.Pipe()
	b := &slowBody{w, make(chan *httptest.ResponseRecorder, 1)}
	request := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/api/settings", r)
	request.Header.Set("Authorization", "Bearer "+key)
	go func() {
		out := httptest.NewRecorder()
		h.handler.ServeHTTP(out, request)
		b.answer <- out
	}()
	return b
}

// end sends the body. The request may have been answered without it.
func (b *slowBody) end() int {
	go func() {
		_, _ = io.WriteString(b, `{"language":"de"}`)
		_ = b.Close()
	}()
	return (<-b.answer).Code
}

// While userRequests of one user execute, this user's next ones wait in order and those above
// userQueue are refused. Another user's requests are executed at once.
func TestAdmission_OneUserKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		begun := time.Now()
		var blocked []*slowBody
		for range limits.UserRequests {
			blocked = append(blocked, h.begin(h.alice))
		}
		synctest.Wait()
		var waiting []chan int
		for range limits.UserQueue {
			answer := make(chan int, 1)
			waiting = append(waiting, answer)
			go func() { answer <- h.do(h.alice, "GET", pathConversations+"/count", "").status }()
			synctest.Wait()
		}
		for i, answer := range waiting {
			select {
			case status := <-answer:
				t.Fatalf("request %d of a user with %d in progress was answered %d at once", limits.UserRequests+i+1,
					limits.UserRequests, status)
			default:
			}
		}
		h.do(h.bob, "GET", pathConversations+"/count", "").want(t, 200)
		h.do(h.bob, "POST", "/api/settings", `{"language":"de"}`).want(t, 200)
		h.do("", "GET", "/ready", "").want(t, 200)
		res := h.do(h.alice, "GET", pathConversations+"/count", "").want(t, http.StatusTooManyRequests)
		if after := res.header.Get("Retry-After"); after != "1" ||
			!strings.Contains(string(res.body), "Too many of your requests") {
			t.Errorf("the refusal is %s, Retry-After %q", res.body, after)
		}
		if passed := time.Since(begun); passed != 0 {
			t.Errorf("somebody waited for %s", passed)
		}
		for _, b := range blocked {
			if status := b.end(); status != 200 {
				t.Errorf("a request in progress was answered %d", status)
			}
		}
		for _, answer := range waiting {
			if status := <-answer; status != 200 {
				t.Errorf("a request that waited was answered %d", status)
			}
		}
		h.do(h.alice, "GET", pathConversations+"/count", "").want(t, 200)
		if n := h.server.admission.Count(); n != 0 {
			t.Errorf("%d users without requests are remembered", n)
		}
	})
}

// A request that waited for RequestTimeout is refused, and leaves its place in the queue.
func TestAdmission_WaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		var blocked []*slowBody
		for range limits.UserRequests {
			blocked = append(blocked, h.begin(h.alice))
		}
		synctest.Wait()
		begun := time.Now()
		h.do(h.alice, "GET", pathConversations+"/count", "").want(t, http.StatusTooManyRequests)
		if passed := time.Since(begun); passed != h.server.cfg.RequestTimeout {
			t.Errorf("it waited for %s", passed)
		}
		if n := testutil.ToFloat64(h.server.metrics.limits.WithLabelValues(limitUserRequests)); n != 1 {
			t.Errorf("%v refusals are counted", n)
		}
		for _, b := range blocked {
			b.end()
		}
		if n := h.server.admission.Count(); n != 0 {
			t.Errorf("%d users without requests are remembered", n)
		}
	})
}

// While other users' large requests have all turns, small requests are served, and a large page and
// a large body wait. A request that waits in vain is refused and nothing is done.
func TestAdmission_SmallRequestsWaitForNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t).withSpec().raised()
		h.large(3)
		var busy []*limits.Slot
		for i := range max(1, runtime.GOMAXPROCS(0)/2) {
			s, err := h.server.admission.Enter("user"+itoa(i), t.Context)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.TakeTurn(t.Context); err != nil {
				t.Fatal(err)
			}
			busy = append(busy, s)
		}
		begun := time.Now()
		h.do(h.alice, "GET", pathConversations+"/search", "").want(t, 200)
		h.do(h.alice, "POST", "/api/settings", `{"language":"de"}`).want(t, 200)
		if passed := time.Since(begun); passed != 0 {
			t.Errorf("small requests waited for %s", passed)
		}
		commands := h.cluster.count()
		large := sprint(`{"initial_message":{"content":[{"type":"text","text":%q}]}}`, strings.Repeat("x", 100_000))
		h.do(h.alice, "POST", pathConversations, large).want(t, http.StatusTooManyRequests)
		if h.cluster.count() != commands {
			t.Error("a refused request did something")
		}
		answer := make(chan reply, 1)
		go func() { answer <- h.do(h.alice, "GET", pathStartSearch, "") }()
		synctest.Wait()
		select {
		case res := <-answer:
			t.Errorf("a large page was answered %d without a turn", res.status)
		default:
		}
		for _, s := range busy {
			s.Leave()
		}
		(<-answer).want(t, 200)
		h.do(h.alice, "POST", pathConversations, large).want(t, 200)
	})
}
