package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// The limits of the drill: of a user without own limits, and of the installation. The limits of
// CPU and memory are for the check at every index.
const (
	runningLimit = 50
	overallLimit = 90
)

// wholeLog turns snapshots off, so that the whole log can be read afterwards.
const wholeLog = "snapshot_threshold = 1000000000\ntrailing_logs = 1000000000"

// limitDrill is a test cluster with every kind of limit.
type limitDrill struct {
	*testcluster.Cluster
	strays int
}

// TestLimit sends bursts of starts through three nodes and kills the leader during them. In the
// end exactly what the limits allow has started, every rejection names its limit and has a
// Retry-After, and every accepted start succeeds. Then the log of every node is replayed
// command by command: at no index was a limit exceeded, of any user or of the installation.
func TestLimit(t *testing.T) {
	d := &limitDrill{Cluster: testcluster.Start(t, testcluster.Options{
		Config: fmt.Sprintf(`limits {
  rate_per_second = 0
  user {
    running_sandboxes = %d
    total_sandboxes   = 0
    starts_per_minute = 0
  }
  installation {
    running_sandboxes = %d
    total_sandboxes   = %d
    cpu               = %d
    memory            = %d
  }
}
`, runningLimit, overallLimit, overallLimit+5, 100*overallLimit, 100*overallLimit),
		Specs: testcluster.MockSpec(""), Raft: wholeLog,
	})}
	t.Run("ABurstOfSandboxes", d.sandboxes)
	t.Run("ABurstOfConversations", d.conversations)
	t.Run("EveryLimitOfAUser", d.everyLimit)
	t.Run("TheInstallations", d.installation)
	t.Run("AtEveryIndex", d.everyIndex)
}

// sandboxes is a burst of two hundred sandboxes against a limit of fifty.
func (d *limitDrill) sandboxes(t *testing.T) {
	d.SetDefault(t, "mock")
	stop, watched := make(chan struct{}), make(chan int, 1)
	go func() { watched <- mostJobs(d.Cluster, stop) }()
	b := d.burst(t, d.Nodes[0].Key, 200, "/api/v1/sandboxes", nil)
	b.want(t, runningLimit, "user_running_sandboxes")
	for _, n := range d.Nodes {
		count, err := n.Count("/api/v1/sandboxes/search?limit=100")
		if err != nil || count != runningLimit {
			t.Errorf("%s shows %d sandboxes, want %d: %v", n.Name, count, runningLimit, err)
		}
	}
	testcluster.Eventually(t, "fifty jobs run", func() error { return d.jobs(runningLimit) })
	close(stop)
	most := <-watched
	if most > runningLimit {
		t.Errorf("at some moment there were %d jobs", most)
	}
	for _, id := range b.accepted {
		d.Nodes[1].Change(t, id, "delete")
	}
	d.empty(t, b)
	t.Logf("--- verdict: a burst of sandboxes: %s, at most %d jobs in Nomad", b, most)
}

func (d *limitDrill) jobs(want int) error {
	jobs, err := d.Jobs()
	if err == nil && len(jobs) != want {
		err = fmt.Errorf("there are %d", len(jobs))
	}
	return err
}

// conversations is a burst of conversations with agents that answer. Each accepted one becomes
// READY.
func (d *limitDrill) conversations(t *testing.T) {
	const limit = 8
	d.SetDefault(t, "raw")
	defer d.SetDefault(t, "mock")
	user := d.user(t, "talker", map[string]int{"running_sandboxes": limit})
	b := d.burst(t, user.Key, 60, "/api/v1/app-conversations", map[string]any{
		"initial_message": map[string]any{"content": []any{map[string]string{"type": "text", "text": "hello"}}},
	})
	b.want(t, limit, "user_running_sandboxes")
	var running []string
	for _, id := range b.accepted {
		running = append(running, *user.AwaitTask(t, id).SandboxID)
	}
	slices.Sort(running)
	if n := len(slices.Compact(running)); n != limit {
		t.Errorf("%d sandboxes for %d conversations", n, limit)
	}
	d.Holds(t, testcluster.Expected{Running: running, Strays: d.strays + b.answered()})
	for _, id := range running {
		user.Change(t, id, "delete")
	}
	d.empty(t, b)
	t.Logf("--- verdict: a burst of conversations: %s, and all of them became READY", b)
}

// empty waits until only secrets are left of a burst: the collector deletes the keys that the
// killed leader wrote for unacknowledged starts.
func (d *limitDrill) empty(t *testing.T, b *burst) {
	t.Helper()
	d.strays += b.answered()
	d.Holds(t, testcluster.Expected{Strays: d.strays})
}

// everyLimit gives a user each of the limits and starts sandboxes against all of them at once.
func (d *limitDrill) everyLimit(t *testing.T) {
	const limit = 6
	limits := map[string]int{
		fsm.LimitRunning: limit,
		fsm.LimitTotal:   limit,
		fsm.LimitStarts:  limit,
		fsm.LimitCPU:     10 * limit,
		fsm.LimitMemory:  10 * limit,
	}
	bursts := map[string]*burst{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, n := range limits {
		user := d.user(t, "limited-by-"+strings.ReplaceAll(name, "_", "-"), map[string]int{name: n})
		wg.Go(func() {
			b := d.starts(t, user.Key, 18, "/api/v1/sandboxes", nil)
			b.wait()
			mu.Lock()
			defer mu.Unlock()
			bursts[name] = b
		})
	}
	wg.Wait()
	for _, name := range slices.Sorted(maps.Keys(bursts)) {
		b := bursts[name]
		if name != fsm.LimitStarts || b.took < time.Minute { // the next minute allows more starts
			b.want(t, limit, fsm.LimitOfUser+name)
		}
		t.Logf("--- verdict: user_%s of %d: %s", name, limits[name], b)
	}
}

// installation fills the rest of the installation's limit.
func (d *limitDrill) installation(t *testing.T) {
	user := d.user(t, "without-limits", map[string]int{})
	used := d.used(t)
	b := d.burst(t, user.Key, 100, "/api/v1/sandboxes", nil)
	b.want(t, overallLimit-used, "installation_running_sandboxes")
	t.Logf("--- verdict: installation_running_sandboxes of %d, %d in use: %s", overallLimit, used, b)
}

// used returns the number of running sandboxes of all users.
func (d *limitDrill) used(t *testing.T) (sum int) {
	t.Helper()
	var list struct {
		Items []struct {
			Usage map[string]int `json:"usage"`
		} `json:"items"`
	}
	if err := d.Nodes[0].Get("/api/v1/operator/users", &list); err != nil {
		t.Fatal(err)
	}
	for _, u := range list.Items {
		sum += u.Usage["running_sandboxes"]
	}
	return sum
}

// user creates a user with those limits and returns its client.
func (d *limitDrill) user(t *testing.T, id string, limits map[string]int) testcluster.Client {
	t.Helper()
	key := d.Nodes[0].NewKey(t, id)
	d.Nodes[0].Sure(t, http.MethodPut, "/api/v1/operator/users/"+id, map[string]any{"policy": nil, "limits": limits}, nil)
	return testcluster.Client{Base: d.Nodes[0].Base, Key: key}
}

// burst is a number of concurrent starts.
type burst struct {
	path  string
	began time.Time
	took  time.Duration
	wg    sync.WaitGroup

	mu       sync.Mutex
	accepted []string
	refused  map[string]int // by limit
}

// burst starts at once through all nodes, and kills the leader after some responses.
func (d *limitDrill) burst(t *testing.T, key string, n int, path string, body any) *burst {
	t.Helper()
	leader := d.Leader(t)
	b := d.starts(t, key, n, path, body)
	testcluster.Eventually(t, "some are answered", func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if done := b.answered(); done < n/20 {
			return fmt.Errorf("only %d", done)
		}
		return nil
	})
	leader.Kill()
	d.Restart(t)
	b.wait()
	return b
}

// starts sends the requests of a burst.
func (d *limitDrill) starts(t *testing.T, key string, n int, path string, body any) *burst {
	t.Helper()
	b := &burst{path: path, refused: map[string]int{}}
	begin := make(chan struct{})
	for i := range n {
		c := testcluster.Client{Base: d.Nodes[i%len(d.Nodes)].Base, Key: key}
		b.wg.Go(func() {
			<-begin
			b.start(t, c, fmt.Sprintf("%s-%s-%d", t.Name(), path, i), body)
		})
	}
	b.began = time.Now()
	close(begin)
	return b
}

// wait waits until every start has a response.
func (b *burst) wait() {
	b.wg.Wait()
	b.took = time.Since(b.began)
}

// start sends one start, and retries it with the same idempotency key while there is no leader,
// until it is accepted or a limit rejects it.
func (b *burst) start(t *testing.T, c testcluster.Client, key string, body any) {
	err := testcluster.Await(testcluster.Patience, func() error {
		a, err := c.Try(http.MethodPost, b.path, body, "Idempotency-Key", key)
		if err != nil {
			return err
		}
		var out struct{ ID, Limit string }
		if err := json.Unmarshal(a.Body, &out); err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		switch a.Status {
		case http.StatusOK:
			b.accepted = append(b.accepted, out.ID)
		case http.StatusTooManyRequests:
			if out.Limit == "" || a.Header.Get("Retry-After") == "" {
				t.Errorf("a refusal without the limit's name or Retry-After %q: %s", a.Header.Get("Retry-After"), a)
			}
			b.refused[out.Limit]++
		default:
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	if err != nil {
		t.Errorf("start %s: %v", key, err)
	}
}

// answered counts the responses. The caller holds mu.
func (b *burst) answered() (n int) {
	for _, r := range b.refused {
		n += r
	}
	return n + len(b.accepted)
}

// want checks the number of accepted starts, and that the limit rejected all others.
func (b *burst) want(t *testing.T, accepted int, limit string) {
	t.Helper()
	if len(b.accepted) != accepted || len(b.refused) != 1 || b.refused[limit] == 0 {
		t.Errorf("accepted %d, want %d; refused: %v, want only %s", len(b.accepted), accepted, b.refused, limit)
	}
}

// String describes the results.
func (b *burst) String() string {
	return fmt.Sprintf("%d starts in %s: %d accepted, refused %v", b.answered(), b.took.Round(time.Millisecond),
		len(b.accepted), b.refused)
}

// mostJobs returns the largest number of sandboxes' jobs that existed at one time.
func mostJobs(f *testcluster.Cluster, stop <-chan struct{}) (most int) {
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
