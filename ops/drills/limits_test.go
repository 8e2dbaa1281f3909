package drills

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
	"bivouac.dev/bivouac/ops/fleet"
)

// What the limits of the drill are: of a user without limits of their own, and
// of the installation. Those of CPU and memory are for the check at every index.
const (
	runningLimit = 50
	overallLimit = 90
)

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

// wholeLog has the nodes take no snapshots, so that their whole log can be read
// afterwards.
const wholeLog = "snapshot_threshold = 1000000000\ntrailing_logs = 1000000000"

// limitDrill is a fleet with limits of every kind.
type limitDrill struct {
	*fleet.Fleet
	strays int
}

// TestLimit sends bursts of starts through three nodes and kills the leader in
// their midst. In the end there is as much as the limits allow, every refusal
// names the limit and says when to come back, and nothing that was accepted
// fails for it. Then the log of every node is applied again, command by command:
// at no index was any limit exceeded, of any user or of the installation.
func TestLimit(t *testing.T) {
	d := &limitDrill{Fleet: fleet.Start(t, fleet.Options{
		Config: fmt.Sprintf(`limits {
  user {
    running_sandboxes = %d
  }
  installation {
    running_sandboxes = %d
    total_sandboxes   = %d
    cpu               = %d
    memory            = %d
  }
}
`, runningLimit, overallLimit, overallLimit+5, 100*overallLimit, 100*overallLimit),
		Specs: mockSpec, Raft: wholeLog,
	})}
	t.Run("ABurstOfSandboxes", d.sandboxes)
	t.Run("ABurstOfConversations", d.conversations)
	t.Run("EveryLimitOfAUser", d.everyLimit)
	t.Run("TheInstallations", d.installation)
	t.Run("AtEveryIndex", d.everyIndex)
	if t.Failed() {
		for _, n := range d.Nodes {
			t.Logf("%s said last:\n%s", n.Name, fleet.Tail(n.Log, 30))
		}
	}
}

// sandboxes is a burst of two hundred against the limit of fifty.
func (d *limitDrill) sandboxes(t *testing.T) {
	d.SetDefault(t, "mock")
	stop, watched := make(chan struct{}), make(chan int, 1)
	go func() { watched <- mostJobs(d.Fleet, stop) }()
	b := d.burst(t, d.Nodes[0].Key, 200, "/api/v1/sandboxes", nil)
	b.want(t, runningLimit, "user_running_sandboxes")
	for _, n := range d.Nodes {
		count, err := n.Count("/api/v1/sandboxes/search?limit=100")
		if err != nil || count != runningLimit {
			t.Errorf("%s shows %d sandboxes, want %d: %v", n.Name, count, runningLimit, err)
		}
	}
	fleet.Eventually(t, "fifty jobs run", func() error { return d.jobs(runningLimit) })
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

// conversations is a burst of conversations, with agents that answer: each that
// is accepted becomes READY.
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
	fleet.Eventually(t, "they run once each", func() error {
		return d.Audit(fleet.Expected{Running: running, Strays: d.strays + b.answered()})
	})
	for _, id := range running {
		user.Change(t, id, "delete")
	}
	d.empty(t, b)
	t.Logf("--- verdict: a burst of conversations: %s, and all of them became READY", b)
}

// empty waits until nothing is left of a burst but keys: what the killed leader
// had written for starts that it never answered is the collector's.
func (d *limitDrill) empty(t *testing.T, b *burst) {
	t.Helper()
	d.strays += b.answered()
	fleet.Eventually(t, "nothing is left", func() error { return d.Audit(fleet.Expected{Strays: d.strays}) })
}

// everyLimit gives a user each of the limits, and has all of them start at once.
func (d *limitDrill) everyLimit(t *testing.T) {
	const limit = 6
	limits := map[string]int{fsm.LimitRunning: limit, fsm.LimitTotal: limit, fsm.LimitStarts: limit, fsm.LimitCPU: 10 * limit, fsm.LimitMemory: 10 * limit}
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
		if name != fsm.LimitStarts || b.took < time.Minute { // in the next minute there is room for more
			b.want(t, limit, fsm.LimitOfUser+name)
		}
		t.Logf("--- verdict: user_%s of %d: %s", name, limits[name], b)
	}
}

// installation fills what is left of the installation's limit.
func (d *limitDrill) installation(t *testing.T) {
	user := d.user(t, "without-limits", map[string]int{})
	used := d.used(t)
	b := d.burst(t, user.Key, 100, "/api/v1/sandboxes", nil)
	b.want(t, overallLimit-used, "installation_running_sandboxes")
	t.Logf("--- verdict: installation_running_sandboxes of %d, %d in use: %s", overallLimit, used, b)
}

// used gives how many sandboxes run, of all users.
func (d *limitDrill) used(t *testing.T) (sum int) {
	t.Helper()
	var list struct {
		Items []struct {
			Usage map[string]int `json:"usage"`
		} `json:"items"`
	}
	a, err := d.Nodes[0].Try(http.MethodGet, "/api/v1/operator/users", nil)
	if err == nil {
		err = a.Decode(&list)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range list.Items {
		sum += u.Usage["running_sandboxes"]
	}
	return sum
}

// user makes a user with those limits, and gives a client for them.
func (d *limitDrill) user(t *testing.T, id string, limits map[string]int) fleet.Client {
	t.Helper()
	var key struct{ Key string }
	d.Nodes[0].Sure(t, http.MethodPost, "/api/v1/operator/keys", map[string]any{"user": id, "name": "drill"}, &key)
	d.Nodes[0].Sure(t, http.MethodPut, "/api/v1/operator/users/"+id, map[string]any{"policy": nil, "limits": limits}, nil)
	return fleet.Client{Base: d.Nodes[0].Base, Key: key.Key}
}

// burst is many starts at once.
type burst struct {
	path  string
	began time.Time
	took  time.Duration
	wg    sync.WaitGroup

	mu       sync.Mutex
	accepted []string
	refused  map[string]int // by limit
}

// burst starts at once through all nodes, and kills the leader when some are
// answered.
func (d *limitDrill) burst(t *testing.T, key string, n int, path string, body any) *burst {
	t.Helper()
	leader := d.Leader(t)
	b := d.starts(t, key, n, path, body)
	fleet.Eventually(t, "some are answered", func() error {
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

// starts begins a burst.
func (d *limitDrill) starts(t *testing.T, key string, n int, path string, body any) *burst {
	t.Helper()
	b := &burst{path: path, refused: map[string]int{}}
	begin := make(chan struct{})
	for i := range n {
		c := fleet.Client{Base: d.Nodes[i%len(d.Nodes)].Base, Key: key}
		b.wg.Go(func() {
			<-begin
			b.start(t, c, fmt.Sprintf("%s-%s-%d", t.Name(), path, i), body)
		})
	}
	b.began = time.Now()
	close(begin)
	return b
}

// wait waits until every start is answered.
func (b *burst) wait() {
	b.wg.Wait()
	b.took = time.Since(b.began)
}

// start starts one, again and again with the same idempotency key while nobody
// leads, until it is accepted or a limit refuses it.
func (b *burst) start(t *testing.T, c fleet.Client, key string, body any) {
	err := fleet.Await(fleet.Patience, func() error {
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

// answered counts; the caller holds mu.
func (b *burst) answered() (n int) {
	for _, r := range b.refused {
		n += r
	}
	return n + len(b.accepted)
}

// want checks that so many were accepted, and all others refused by that limit.
func (b *burst) want(t *testing.T, accepted int, limit string) {
	t.Helper()
	if len(b.accepted) != accepted || len(b.refused) != 1 || b.refused[limit] == 0 {
		t.Errorf("accepted %d, want %d; refused: %v, want only %s", len(b.accepted), accepted, b.refused, limit)
	}
}

// String is what became of it.
func (b *burst) String() string {
	return fmt.Sprintf("%d starts in %s: %d accepted, refused %v", b.answered(), b.took.Round(time.Millisecond), len(b.accepted), b.refused)
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
