package workload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// settleTime is how long a sandbox may take to reach the requested state: its start timeout
// (two minutes) and a margin for a busy machine.
const settleTime = 4 * time.Minute

// owned is one sandbox as its client knows it.
type owned struct {
	id, spec string
	// want is RUNNING or PAUSED, as the last acknowledged change requested.
	want string
	chat
	// may holds the possible contents of the file in the workspace. There are several if a
	// write's outcome is unknown. "" means that the file was never written.
	may []string
	// cleaned: its agent cleared the workspace, including the marker.
	cleaned bool
	// key is the sandbox's key, "" until it was read.
	key string
}

// actor is one client. It repeats each action until it is acknowledged before it starts the
// next, so it always knows the last requested state.
type actor struct {
	*client
	of   *Actors
	name string
	// key is that of its user.
	key       string
	sandboxes []*owned
	made      int
	// sent are all its messages, also those in deleted sandboxes.
	sent []*message
	// plain never retries a request by itself.
	plain *http.Client
}

// live runs one action after another until ctx ends, and before that starts its sandboxes where
// Each says how many. After a broken promise it does nothing.
func (a *actor) live(ctx context.Context) {
	for ctx.Err() == nil && len(a.sandboxes) < a.of.o.Each {
		if a.start() != nil {
			break
		}
	}
	for ctx.Err() == nil {
		if err := a.step(); err != nil {
			<-ctx.Done()
		}
	}
}

// step runs one action. Its error is a violation.
func (a *actor) step() error {
	if n := len(a.sandboxes); n == 0 || n < max(2, a.of.o.Each) && a.rand.IntN(3) == 0 {
		return a.start()
	}
	if a.rand.IntN(15) == 0 {
		return a.revoke()
	}
	b := a.sandboxes[a.rand.IntN(len(a.sandboxes))]
	dice := a.rand.IntN(10)
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

// anywhere returns a random node, running or not, like a load balancer that has not noticed a
// failure.
func (a *actor) anywhere() testcluster.Client {
	return testcluster.Client{Base: a.nodes[a.rand.IntN(len(a.nodes))].Base, Key: a.key}
}

// until calls attempt until it reports success.
func (a *actor) until(what string, attempt func(testcluster.Client) (bool, error)) error {
	begin := time.Now()
	var last error
	for first := true; time.Since(begin) < settleTime; first = false {
		if !first {
			a.again()
			a.pause(context.Background(), 20*time.Millisecond, 200*time.Millisecond)
		}
		done, err := attempt(a.anywhere())
		if done {
			a.operation(what, time.Since(begin))
			return err
		}
		last = err
	}
	return a.violation("%s: %s: not within %s: %w", a.name, what, settleTime, last)
}

// newKey makes an Idempotency-Key and counts it in made.
func (a *actor) newKey() string {
	a.made++
	return fmt.Sprintf("%s-%d-%d", a.name, a.made, time.Now().UnixNano())
}

func (a *actor) start() error {
	key, spec := a.newKey(), a.of.o.Specs[a.rand.IntN(len(a.of.o.Specs))]
	var sb testcluster.Sandbox
	err := a.until("start", func(c testcluster.Client) (bool, error) {
		answer, err := c.Try(http.MethodPost, "/api/v1/sandboxes?sandbox_spec_id="+url.QueryEscape(spec), nil,
			"Idempotency-Key", key)
		if err == nil {
			err = answer.Decode(&sb)
		}
		if err != nil && refused(answer) {
			return true, a.violation("%s: a start was refused: %w", a.name, err)
		}
		return err == nil, err
	})
	if err == nil {
		a.of.starts(sb.ID)
		a.sandboxes = append(a.sandboxes, &owned{id: sb.ID, spec: spec, want: "RUNNING", may: []string{""}})
	}
	return err
}

// refused reports whether a retry can't change the response.
func refused(a testcluster.Answer) bool {
	return a.Status/100 == 4 && a.Status != http.StatusTooManyRequests && a.Status != http.StatusConflict
}

// change pauses, resumes or deletes a sandbox.
func (a *actor) change(b *owned, what string) error {
	method, path := http.MethodPost, "/api/v1/sandboxes/"+b.id+"/"+what
	if what == "delete" {
		method, path = http.MethodDelete, "/api/v1/sandboxes/"+b.id
		a.of.ends(b.id)
	}
	tried := 0
	err := a.until(what+" of "+b.id, func(c testcluster.Client) (bool, error) {
		tried++
		answer, err := c.Try(method, path, nil)
		switch {
		case err != nil:
			return false, err
		case answer.Status/100 == 2:
			return true, nil
		case what == "delete" && answer.Status == http.StatusNotFound && tried > 1:
			return true, nil // an earlier attempt took effect
		case refused(answer):
			return true, a.violation("%s: %s of %s (%s) was refused: %s", a.name, what, b.id, b.want, answer)
		}
		return false, errors.New(answer.String())
	})
	switch {
	case err != nil:
	case what == "delete":
		a.sandboxes = slices.DeleteFunc(a.sandboxes, func(o *owned) bool { return o == b })
		err = a.leave(b)
	case what == "pause":
		b.want = "PAUSED"
	default:
		b.want = "RUNNING"
	}
	return err
}

// settled waits until the sandbox has the requested state. A sandbox that could not start must
// have a reason and be resumable.
func (a *actor) settled(b *owned) error {
	other := map[string]string{"RUNNING": "PAUSED", "PAUSED": "RUNNING"}[b.want]
	return a.until("settle "+b.id+" to "+b.want, func(c testcluster.Client) (bool, error) {
		sb, err := c.Sandbox(b.id)
		switch {
		case errors.Is(err, testcluster.ErrGone):
			return true, a.violation("%s: sandbox %s is lost: it should be %s", a.name, b.id, b.want)
		case err != nil:
			return false, err
		case sb.Status == b.want:
			return true, nil
		case sb.Status == other && strings.Contains(sb.Detail(), "Nomad client"): // it is drained
		case sb.Status == other && b.want == "RUNNING":
			return true, a.violation("%s: sandbox %s is shown %s after %s was acknowledged", a.name, b.id, sb.Status, b.want)
		case sb.Status == "ERROR" && sb.Detail() == "":
			return true, a.violation("%s: sandbox %s is in ERROR without a reason", a.name, b.id)
		case sb.Status == "ERROR" && b.want == "RUNNING":
			reason, _, _ := strings.Cut(sb.Detail(), ":")
			a.failed(reason)
			if b.cleaned && strings.Contains(sb.Detail(), "its marker") {
				if answer, err := c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/accept-workspace", nil); err != nil ||
					answer.Status/100 != 2 {
					return false, errors.Join(err, fmt.Errorf("ERROR (%s), accepted: %s", sb.Detail(), answer))
				}
			}
			answer, err := c.Try(http.MethodPost, "/api/v1/sandboxes/"+b.id+"/resume", nil)
			return false, errors.Join(err, fmt.Errorf("ERROR (%s), resumed: %s", sb.Detail(), answer))
		}
		return false, fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
	})
}

// visit checks the file and writes it anew.
func (a *actor) visit(b *owned) error {
	if err := a.settled(b); err != nil {
		return err
	}
	if err := a.read(b); err != nil {
		return err
	}
	a.made++
	next := fmt.Sprintf("%s-%d", a.name, a.made)
	err := a.until("write", func(c testcluster.Client) (bool, error) {
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

// read checks that the file has the last written content.
func (a *actor) read(b *owned) error {
	return a.until("read", func(c testcluster.Client) (bool, error) {
		sb, dir, err := a.enter(c, b)
		if err != nil {
			return false, err
		}
		got, err := sb.ReadFile(dir + "/" + fileName)
		if err != nil && slices.Contains(b.may, "") && strings.HasPrefix(err.Error(), "404") {
			return true, nil
		}
		if err != nil && strings.HasPrefix(err.Error(), "404 ") && strings.Contains(err.Error(), "File not found") {
			return true, a.violation("%s: sandbox %s came back without its file: %w", a.name, b.id, err)
		}
		if err != nil {
			return false, err
		}
		if !slices.Contains(b.may, got) {
			return true, a.violation("%s: the file in sandbox %s says %q, should say one of %q", a.name, b.id, got, b.may)
		}
		return true, nil
	})
}

// enter returns the RUNNING sandbox and the path of its workspace.
func (a *actor) enter(c testcluster.Client, b *owned) (testcluster.Sandbox, string, error) {
	sb, err := c.SandboxIn(b.id, "RUNNING")
	if err != nil {
		return sb, "", err
	}
	b.key = sb.Inside().Key
	dir, err := sb.WorkspaceDir()
	return sb, dir, err
}
