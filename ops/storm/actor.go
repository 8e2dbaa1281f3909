package storm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/fleet"
)

// settleTime is how long a sandbox may take to be what was asked for: its start
// timeout (two minutes) and time for the machine.
const settleTime = 4 * time.Minute

// box is one sandbox as its client knows it.
type box struct {
	id, spec string
	// want is RUNNING or PAUSED: what the last acknowledged change asked for.
	want string
	talk
	// may holds what the file in the workspace may say: one value, or more
	// where the outcome of a write is not known. "" is a file never written.
	may []string
	// cleaned: its workspace was cleared by its agent, the marker with it.
	cleaned bool
}

// actor is one client. It does one thing after another, each until it is
// acknowledged, so it always knows what it asked for last.
type actor struct {
	name  string
	nodes []*fleet.Node
	specs []string
	rng   *rand.Rand
	tally *tally
	boxes []*box
	made  int
	// sent are all its messages, those in sandboxes that were deleted too.
	sent []*message
	// plain never repeats a request by itself.
	plain *http.Client
}

// newActor makes the actor of a storm with the number.
func newActor(number int, o Options, t *tally) *actor {
	return &actor{
		name: fmt.Sprintf("actor-%d", number), nodes: o.Fleet.Nodes, specs: o.Specs, tally: t,
		rng:   rand.New(rand.NewPCG(o.Seed, uint64(number))),
		plain: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

func newTally() *tally {
	return &tally{
		done: map[string]int{}, reasons: map[string]int{},
		lives: lives{started: map[string]bool{}, ended: map[string]time.Time{}},
	}
}

// tally counts what happens, for all actors.
type tally struct {
	mu       sync.Mutex
	done     map[string]int
	retries  int
	reasons  map[string]int
	longest  time.Duration
	slowest  string
	violated []error
	lives    lives
}

// starts and ends note what was asked for in a sandbox's life.
func (t *tally) starts(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lives.started[id] = true
}

func (t *tally) ends(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lives.ended[id].IsZero() {
		t.lives.ended[id] = time.Now()
	}
}

func (t *tally) count(what string, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	op, _, _ := strings.Cut(what, " ")
	t.done[op]++
	if took > t.longest {
		t.longest, t.slowest = took, what
	}
}

func (t *tally) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retries++
}

func (t *tally) failed(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, _, long := strings.Cut(reason, ":"); long {
		reason = before
	}
	t.reasons[reason]++
}

// violation is a broken promise; the actor goes no further.
func (t *tally) violation(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.violated = append(t.violated, err)
	return err
}

// live does one thing after another until ctx ends or a promise is broken.
func (a *actor) live(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.step(); err != nil {
			return
		}
	}
}

// step does one thing. Its error is a violation.
func (a *actor) step() error {
	if len(a.boxes) == 0 || len(a.boxes) < 2 && a.rng.IntN(3) == 0 {
		return a.start()
	}
	b := a.boxes[a.rng.IntN(len(a.boxes))]
	dice := a.rng.IntN(10)
	switch {
	case dice == 0:
		return a.change(b, "delete")
	case b.want == "PAUSED":
		if dice < 5 {
			return a.settled(b)
		}
		return a.change(b, "resume")
	case dice == 3 && b.spec != "docker": // no shell there
		return a.clean(b)
	case dice < 4:
		return a.visit(b)
	case dice < 7:
		return a.say(b)
	default:
		return a.change(b, "pause")
	}
}

// anywhere is a node by chance, dead or alive, as behind a load balancer that
// has not noticed.
func (a *actor) anywhere() fleet.Client { return a.nodes[a.rng.IntN(len(a.nodes))].Client }

// until tries until attempt says that it is done.
func (a *actor) until(what string, attempt func(fleet.Client) (bool, error)) error {
	begin := time.Now()
	var last error
	for first := true; time.Since(begin) < settleTime; first = false {
		if !first {
			a.tally.again()
			<-time.After(time.Duration(20+a.rng.IntN(180)) * time.Millisecond)
		}
		done, err := attempt(a.anywhere())
		if done {
			a.tally.count(what, time.Since(begin))
			return err
		}
		last = err
	}
	return a.tally.violation("%s: %s: not within %s: %w", a.name, what, settleTime, last)
}

// newKey makes an Idempotency-Key, counted in made.
func (a *actor) newKey() string {
	a.made++
	return fmt.Sprintf("%s-%d-%d", a.name, a.made, time.Now().UnixNano())
}

func (a *actor) start() error {
	key, spec := a.newKey(), a.specs[a.rng.IntN(len(a.specs))]
	var sb fleet.Sandbox
	err := a.until("start", func(c fleet.Client) (bool, error) {
		answer, err := c.Try(http.MethodPost, "/api/v1/sandboxes?sandbox_spec_id="+url.QueryEscape(spec), nil, "Idempotency-Key", key)
		if err == nil {
			err = answer.Decode(&sb)
		}
		if err != nil && refused(answer) {
			return true, a.tally.violation("%s: a start was refused: %w", a.name, err)
		}
		return err == nil, err
	})
	if err == nil {
		a.tally.starts(sb.ID)
		a.boxes = append(a.boxes, &box{id: sb.ID, spec: spec, want: "RUNNING", may: []string{""}})
	}
	return err
}

// refused tells an answer that repeating can't better.
func refused(a fleet.Answer) bool {
	return a.Status/100 == 4 && a.Status != http.StatusTooManyRequests && a.Status != http.StatusConflict
}

// change pauses, resumes or deletes.
func (a *actor) change(b *box, what string) error {
	method, path := http.MethodPost, "/api/v1/sandboxes/"+b.id+"/"+what
	if what == "delete" {
		method, path = http.MethodDelete, "/api/v1/sandboxes/"+b.id
		a.tally.ends(b.id)
	}
	tried := 0
	err := a.until(what+" of "+b.id, func(c fleet.Client) (bool, error) {
		tried++
		answer, err := c.Try(method, path, nil)
		switch {
		case err != nil:
			return false, err
		case answer.Status/100 == 2:
			return true, nil
		case what == "delete" && answer.Status == http.StatusNotFound && tried > 1:
			return true, nil // an earlier try was carried out
		case refused(answer):
			return true, a.tally.violation("%s: %s of %s (%s) was refused: %s", a.name, what, b.id, b.want, answer)
		}
		return false, errors.New(answer.String())
	})
	switch {
	case err != nil:
	case what == "delete":
		a.boxes = slices.DeleteFunc(a.boxes, func(o *box) bool { return o == b })
	case what == "pause":
		b.want = "PAUSED"
	default:
		b.want = "RUNNING"
	}
	return err
}

// settled waits until the sandbox is what was asked for. One that could not be
// started must say why, and can be resumed.
func (a *actor) settled(b *box) error {
	other := map[string]string{"RUNNING": "PAUSED", "PAUSED": "RUNNING"}[b.want]
	return a.until("settle "+b.id+" to "+b.want, func(c fleet.Client) (bool, error) {
		sb, err := c.Sandbox(b.id)
		switch {
		case errors.Is(err, fleet.ErrGone):
			return true, a.tally.violation("%s: sandbox %s is lost: it should be %s", a.name, b.id, b.want)
		case err != nil:
			return false, err
		case sb.Status == b.want:
			return true, nil
		case sb.Status == other && b.want == "RUNNING":
			return true, a.tally.violation("%s: sandbox %s is shown %s after %s was acknowledged", a.name, b.id, sb.Status, b.want)
		case sb.Status == "ERROR" && sb.Detail() == "":
			return true, a.tally.violation("%s: sandbox %s is in ERROR without a reason", a.name, b.id)
		case sb.Status == "ERROR" && b.want == "RUNNING":
			a.tally.failed(sb.Detail())
			if b.cleaned && strings.Contains(sb.Detail(), "its marker") {
				if answer, err := c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/accept-workspace", nil); err != nil || answer.Status/100 != 2 {
					return false, errors.Join(err, fmt.Errorf("ERROR (%s), accepted: %s", sb.Detail(), answer))
				}
			}
			answer, err := c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/resume", nil)
			return false, errors.Join(err, fmt.Errorf("ERROR (%s), resumed: %s", sb.Detail(), answer))
		}
		return false, fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
	})
}

// visit reads the file and writes it anew.
func (a *actor) visit(b *box) error {
	if err := a.settled(b); err != nil {
		return err
	}
	if err := a.read(b); err != nil {
		return err
	}
	a.made++
	next := fmt.Sprintf("%s-%d", a.name, a.made)
	err := a.until("write", func(c fleet.Client) (bool, error) {
		sb, dir, err := a.enter(c, b)
		if err != nil {
			return false, err
		}
		if !slices.Contains(b.may, next) {
			b.may = append(b.may, next)
		}
		err = sb.WriteFile(dir+"/"+fileName, next)
		return err == nil, err
	})
	if err == nil {
		b.may = []string{next}
	}
	return err
}

// fileName is the file the actors keep in a workspace.
const fileName = "storm.txt"

// read checks that the file says what was last written.
func (a *actor) read(b *box) error {
	return a.until("read", func(c fleet.Client) (bool, error) {
		sb, dir, err := a.enter(c, b)
		if err != nil {
			return false, err
		}
		got, err := sb.ReadFile(dir + "/" + fileName)
		if err != nil && slices.Contains(b.may, "") && strings.HasPrefix(err.Error(), "404") {
			return true, nil
		}
		if err != nil && strings.HasPrefix(err.Error(), "404 ") && strings.Contains(err.Error(), "File not found") {
			return true, a.tally.violation("%s: sandbox %s came back without its file: %w", a.name, b.id, err)
		}
		if err != nil {
			return false, err
		}
		if !slices.Contains(b.may, got) {
			return true, a.tally.violation("%s: the file in sandbox %s says %q, should say one of %q", a.name, b.id, got, b.may)
		}
		return true, nil
	})
}

// enter gives the RUNNING sandbox and where its workspace is.
func (a *actor) enter(c fleet.Client, b *box) (fleet.Sandbox, string, error) {
	sb, err := c.Sandbox(b.id)
	if err == nil && sb.Status != "RUNNING" {
		err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
	}
	if err != nil {
		return sb, "", err
	}
	dir, err := sb.WorkspaceDir()
	return sb, dir, err
}
