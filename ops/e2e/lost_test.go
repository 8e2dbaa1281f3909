package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// lost is a test cluster whose sandboxes run on a second machine, which gets lost.
type lost struct {
	*operators
	machine *local.Nomad
	id      string
}

// lostAfter is when Nomad gives up a sandbox on a lost client.
const lostAfter = time.Minute

// TestLostClient loses the machine with the sandboxes in several ways until Nomad reports it,
// and brings it back. There is never a second copy. The sandbox keeps running or reports that
// the client is lost, and afterwards it is the same one with its file.
func TestLostClient(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	f := testcluster.Start(t, testcluster.Options{Backend: fmt.Sprintf("lost_after = %q", lostAfter)})
	machine := f.AddMachine(t)
	l := &lost{operators: &operators{Cluster: f, spec: "raw", node: f.Nodes[0]}, machine: machine}
	first, err := f.Nomad.NodeID(t.Context())
	if err == nil {
		l.id, err = machine.NodeID(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Eligible(t, first, false)
	for _, c := range []struct {
		name string
		run  func(*testing.T) string
	}{
		{"AgentHangs", l.agentHangs},
		{"MachineHangs", l.machineHangs},
		{"MachineCrashes", l.machineCrashes},
		{"MachineHangsUntilItsSandboxesAreLost", l.givenUp},
		{"DeletedWhileTheMachineHangs", l.deletedWhileAway},
	} {
		begin, what := time.Now(), "FAILED"
		if ok := t.Run(c.name, func(t *testing.T) { what = c.run(t) }); !ok {
			what = "FAILED"
			_ = machine.Thaw()
		}
		t.Logf("--- verdict: %s: %s (%.1f s)", c.name, what, time.Since(begin).Seconds())
		if what == "FAILED" {
			l.clear(t)
		}
	}
}

// begin starts a sandbox with a file in it, and waits until Nomad reports it as running, about
// a second later. Nomad would replace a task that it loses before that.
func (l *lost) begin(t *testing.T) string {
	t.Helper()
	id := l.operators.begin(t)
	testcluster.Eventually(t, "Nomad knows that sandbox "+id+" runs", func() error {
		allocs, err := l.Allocs()
		for _, a := range allocs {
			if a.JobID == "sandbox-"+id && a.ClientStatus == "running" {
				return nil
			}
		}
		return errors.Join(err, errors.New("it does not"))
	})
	return id
}

func (l *lost) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is waits until Nomad reports one of the states for the machine.
func (l *lost) is(t *testing.T, states ...string) {
	t.Helper()
	testcluster.Eventually(t, fmt.Sprintf("the machine is %v", states), func() error {
		var node struct{ Status string }
		if err := l.Nomad.Do(t.Context(), http.MethodGet, "node/"+l.id, nil, &node); err != nil {
			return err
		}
		for _, s := range states {
			if node.Status == s {
				return nil
			}
		}
		return fmt.Errorf("it is %s", node.Status)
	})
}

// same checks that the sandbox has its former allocation and no other.
func (l *lost) same(t *testing.T, id string, before []string) {
	t.Helper()
	if after := l.placed(t, id); len(before) != 1 || len(after) != 1 || after[0] != before[0] {
		t.Errorf("it ran as %v before and as %v after", before, after)
	}
}

// fails waits until the sandbox is in ERROR with one of the words: Nomad may give it up before
// its health calls fail.
func (l *lost) fails(t *testing.T, id string, words ...string) (sb testcluster.Sandbox) {
	t.Helper()
	l.must(t, testcluster.Await(lostAfter+testcluster.Patience, func() (err error) {
		sb, err = l.node.Sandbox(id)
		named := slices.ContainsFunc(words, func(w string) bool { return strings.Contains(sb.Detail(), w) })
		if err == nil && (sb.Status != "ERROR" || !named) {
			err = fmt.Errorf("it is %s (%s)", sb.Status, sb.Detail())
		}
		return err
	}))
	return sb
}

// isLost returns nil if Nomad has given up the sandbox's allocation.
func (l *lost) isLost(id string) error {
	allocs, err := l.Allocs()
	for _, a := range allocs {
		if a.JobID == "sandbox-"+id && a.ClientStatus == "lost" {
			return nil
		}
	}
	return errors.Join(err, errors.New("it has not"))
}

// agentHangs: only Nomad's client agent hangs. The sandbox does not need it.
func (l *lost) agentHangs(t *testing.T) string {
	id := l.begin(t)
	before := l.placed(t, id)
	l.must(t, syscall.Kill(l.machine.Pid(), syscall.SIGSTOP))
	l.is(t, "down", "disconnected")
	hasFile(t, l.node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	l.same(t, id, before)
	l.must(t, syscall.Kill(l.machine.Pid(), syscall.SIGCONT))
	l.is(t, "ready")
	l.same(t, id, before)
	l.end(t, id)
	return "the sandbox went on in the same allocation, with its file"
}

// machineHangs: the sandbox hangs too.
func (l *lost) machineHangs(t *testing.T) string {
	said := l.hangs(t, func(string) { l.is(t, "down", "disconnected") })
	return fmt.Sprintf("it said %q, and was back with its file", said)
}

// hangs freezes the machine, waits for what Nomad then reports, and thaws it. It returns what the
// sandbox said meanwhile.
func (l *lost) hangs(t *testing.T, noticed func(id string)) string {
	t.Helper()
	id := l.begin(t)
	l.must(t, l.machine.Freeze())
	noticed(id)
	sb := l.fails(t, id, "is away", "was lost")
	l.must(t, l.machine.Thaw())
	l.is(t, "ready")
	l.recovers(t, id)
	l.end(t, id)
	return sb.Detail()
}

// machineCrashes: the processes are gone, the disk survives.
func (l *lost) machineCrashes(t *testing.T) string {
	id := l.begin(t)
	l.must(t, l.machine.Crash())
	l.is(t, "down", "disconnected")
	sb := l.fails(t, id, "is away", "was lost")
	l.must(t, l.machine.Start(t.Context()))
	l.is(t, "ready")
	l.recovers(t, id)
	l.end(t, id)
	return fmt.Sprintf("it said %q, and ran again on the machine that was back, with its file", sb.Detail())
}

// givenUp: Nomad gives the sandbox up before the machine is back.
func (l *lost) givenUp(t *testing.T) string {
	said := l.hangs(t, func(id string) {
		testcluster.Eventually(t, "Nomad gives the sandbox up", func() error { return l.isLost(id) })
	})
	return fmt.Sprintf("it said %q, and a resume brought it back with its file", said)
}

// deletedWhileAway: the sandbox is deleted meanwhile, and nothing is left when the machine is
// back.
func (l *lost) deletedWhileAway(t *testing.T) string {
	id := l.begin(t)
	l.must(t, l.machine.Freeze())
	l.is(t, "down", "disconnected")
	l.node.Change(t, id, "delete")
	if _, err := l.node.Sandbox(id); !errors.Is(err, testcluster.ErrGone) {
		t.Errorf("it is still shown: %v", err)
	}
	l.must(t, l.machine.Thaw())
	l.is(t, "ready")
	begin := time.Now()
	l.Holds(t, testcluster.Expected{})
	return fmt.Sprintf("nothing was left %.1f s after the machine was back", time.Since(begin).Seconds())
}
