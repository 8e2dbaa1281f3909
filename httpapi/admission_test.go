package httpapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
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
		for range userRequests {
			blocked = append(blocked, h.begin(h.alice))
		}
		synctest.Wait()
		var waiting []chan int
		for range userQueue {
			answer := make(chan int, 1)
			waiting = append(waiting, answer)
			go func() { answer <- h.do(h.alice, "GET", pathConversations+"/count", "").status }()
			synctest.Wait()
		}
		for i, answer := range waiting {
			select {
			case status := <-answer:
				t.Fatalf("request %d of a user with %d in progress was answered %d at once", userRequests+i+1, userRequests, status)
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
		if n := len(h.server.admission.users); n != 0 {
			t.Errorf("%d users without requests are remembered", n)
		}
	})
}

// A request that waited for RequestTimeout is refused, and leaves its place in the queue.
func TestAdmission_WaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		var blocked []*slowBody
		for range userRequests {
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
		if n := len(h.server.admission.users); n != 0 {
			t.Errorf("%d users without requests are remembered", n)
		}
	})
}

// slotOf is an admitted request of a user.
func (a *admission) slotOf(t *testing.T, user string) *slot {
	t.Helper()
	s, err := a.enter(user, t.Context)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// One user's large requests take turns with those of other users: of a user one works at a time, and
// all together on half of the processors.
func TestAdmission_LargeRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(4)
		var mu sync.Mutex
		var order []string
		free := make(chan struct{})
		work := func(user string) {
			s := a.slotOf(t, user)
			go func() {
				if err := s.takeTurn(t.Context); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, user)
				mu.Unlock()
				<-free
				s.leave()
			}()
			synctest.Wait()
		}
		for _, user := range []string{"mallory", "mallory", "mallory", "alice", "alice", "bob", "bob"} {
			work(user)
		}
		defer close(free)
		for want := 2; ; want++ {
			if len(order) != want {
				t.Fatalf("%d requests had their turn on two processors: %v", len(order), order)
			}
			if want == 7 {
				break
			}
			free <- struct{}{}
			synctest.Wait()
		}
		if got := strings.Join(order, " "); got != "mallory alice bob mallory alice bob mallory" {
			t.Errorf("the turns were of %s", got)
		}
	})
}

// While other users' large requests have all turns, small requests are served, and a large page and
// a large body wait. A request that waits in vain is refused and nothing is done.
func TestAdmission_SmallRequestsWaitForNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t).withSpec().raised()
		h.large(3)
		var busy []*slot
		for i := range max(1, runtime.GOMAXPROCS(0)/2) {
			s := h.server.admission.slotOf(t, "user"+itoa(i))
			if err := s.takeTurn(t.Context); err != nil {
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
			s.leave()
		}
		(<-answer).want(t, 200)
		h.do(h.alice, "POST", pathConversations, large).want(t, 200)
	})
}

// The bodies of one user's requests in progress are bounded in bytes. Small ones don't count, and
// other users' don't wait for them.
func TestAdmission_BodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission(2)
		hold := func(user string, n int64) (*slot, error) {
			s := a.slotOf(t, user)
			return s, s.holdBody(func() context.Context {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				t.Cleanup(cancel)
				return ctx
			}, n)
		}
		var held []*slot
		for range 4 {
			s, err := hold("alice", userBodies/4)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, s)
		}
		if s, err := hold("alice", freeDataBytes+1); err == nil {
			t.Error("any number of bodies is held")
		} else {
			s.leave()
		}
		for user, n := range map[string]int64{"alice": freeDataBytes, "bob": userBodies} {
			s, err := hold(user, n)
			if err != nil {
				t.Errorf("%s, %d bytes: %v", user, n, err)
			}
			s.leave()
		}
		for _, s := range held {
			s.leave()
		}
		if !a.bodies.TryAcquire(allBodies) {
			t.Error("bodies of requests that ended are held")
		}
	})
}
