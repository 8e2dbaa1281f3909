package drills

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

const runningLimit = 50

// TestLimit sends two hundred starts at once through three nodes against a
// limit of fifty, and kills the leader in their midst: at no moment are there
// more than fifty, in the end there are fifty, and every refusal names the
// limit and says when to come back.
func TestLimit(t *testing.T) {
	starts := 200
	f := fleet.Start(t, fleet.Options{
		Config: fmt.Sprintf("limits {\n  user {\n    running_sandboxes = %d\n  }\n}\n", runningLimit),
		Specs:  mockSpec,
	})
	f.SetDefault(t, "mock")

	stop, watched := make(chan struct{}), make(chan int, 1)
	go func() { watched <- mostJobs(f, stop) }()
	begin := make(chan struct{})
	var wg sync.WaitGroup
	var refusals refusals
	leader := f.Leader(t)
	for i := range starts {
		node := f.Nodes[i%len(f.Nodes)]
		wg.Go(func() {
			<-begin
			refusals.start(t, node, fmt.Sprintf("limit-%d", i))
		})
	}
	close(begin)
	fleet.Eventually(t, "some were refused or started", func() error { return refusals.some() })
	leader.Kill()
	f.Restart(t)
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, n := range f.Nodes {
		count, err := n.Count("/api/v1/sandboxes/search?limit=100")
		if err != nil || count != runningLimit {
			t.Errorf("%s shows %d sandboxes, want %d: %v", n.Name, count, runningLimit, err)
		}
	}
	fleet.Eventually(t, "fifty jobs run", func() error {
		jobs, err := f.Jobs()
		if err == nil && len(jobs) != runningLimit {
			err = fmt.Errorf("there are %d", len(jobs))
		}
		return err
	})
	close(stop)
	if most := <-watched; most > runningLimit {
		t.Errorf("at some moment there were %d jobs", most)
	}
	t.Logf("%d starts: %d accepted, %d refused", starts, refusals.accepted, refusals.refused)
	if refusals.accepted != runningLimit || refusals.refused != starts-runningLimit {
		t.Errorf("%d starts were accepted and %d refused", refusals.accepted, refusals.refused)
	}
}

// mockSpec costs nothing to run: Nomad's word is enough.
const mockSpec = `
spec "mock" {
  driver      = "mock_driver"
  readiness   = "allocation"
  working_dir = "project"
  cpu         = 10
  memory      = 10
  port "AGENT_SERVER" {}
}
`

// refusals counts what became of starts.
type refusals struct {
	mu                sync.Mutex
	accepted, refused int
}

// start starts a sandbox, again and again with the same idempotency key while
// nobody leads, until it is accepted or the limit refuses it.
func (r *refusals) start(t *testing.T, node *fleet.Node, key string) {
	err := fleet.Await(fleet.Patience, func() error {
		a, err := node.Try(http.MethodPost, "/api/v1/sandboxes", nil, "Idempotency-Key", key)
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		switch a.Status {
		case http.StatusOK:
			r.accepted++
		case http.StatusTooManyRequests:
			var body map[string]any
			if err := json.Unmarshal(a.Body, &body); err != nil || !strings.Contains(string(a.Body), "user_running_sandboxes") || a.Header.Get("Retry-After") == "" {
				t.Errorf("a refusal without the limit's name or Retry-After %q: %s", a.Header.Get("Retry-After"), a)
			}
			r.refused++
		default:
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	if err != nil {
		t.Errorf("start %s through %s: %v", key, node.Name, err)
	}
}

func (r *refusals) some() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.accepted+r.refused < 20 {
		return fmt.Errorf("only %d were answered", r.accepted+r.refused)
	}
	return nil
}

// mostJobs watches how many sandboxes' jobs there are at most.
func mostJobs(f *fleet.Fleet, stop <-chan struct{}) (most int) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return most
		case <-tick.C:
		}
		if jobs, err := f.Jobs(); err == nil {
			most = max(most, len(jobs))
		}
	}
}
