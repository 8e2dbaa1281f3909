package nomadtest_test

import (
	"context"
	"fmt"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// verdicts is a TB that records its failures.
type verdicts []string

func (*verdicts) Helper() {}

func (v *verdicts) Errorf(format string, args ...any) { *v = append(*v, fmt.Sprintf(format, args...)) }

func TestNomad_UndeclaredDestructionFailsTheTest(t *testing.T) {
	cluster := nomadtest.NewCluster("c1")
	cluster.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "s", Template: fsm.Template{
		Driver: fsm.DriverMock, Readiness: fsm.ReadinessAllocation, CPU: 20, Memory: 16, Ports: map[string]int{
			fsm.PortAgentServer: 0,
		},
	}}}}, "operator")
	for _, id := range []string{"kept", "deleted"} {
		cluster.Create(id, "s", 1)
	}
	cluster.Must(&fsm.SandboxDeleteBody{ID: "deleted"}, "u1")
	for name, c := range map[string]struct {
		id   string
		call func(n *nomadtest.Nomad, id string, o scheduler.Observed) error
		want int
	}{
		"job and workspace of a row":         {"kept", remove(false), 2},
		"job of a row, workspace kept":       {"kept", remove(true), 1},
		"workspace of a row":                 {"kept", removeWorkspace, 1},
		"job and workspace of a deleted row": {"deleted", remove(false), 0},
		"workspace of a deleted row":         {"deleted", removeWorkspace, 0},
		"job and workspace without a row":    {"stray", remove(false), 2},
		"workspace without a row":            {"stray", removeWorkspace, 1},
		"declared":                           {"declared", remove(false), 0},
		"workspace, declared":                {"declared", removeWorkspace, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var failed verdicts
			n := nomadtest.NewNomad(&failed, nomadtest.Options{}, nomadtest.NewSecrets(),
				nomadtest.DeletedIn(cluster.Store.View))
			n.AddBorn(c.id, "c1", "c1/aa/1")
			n.Declare("declared")
			list, err := n.List(t.Context(), "c1")
			if err != nil || len(list) != 1 || list[0].Birth != "c1/aa/1" {
				t.Fatalf("List: %+v, %v", list, err)
			}
			before := len(n.Destroyed())
			if err := c.call(n, c.id, list[0]); err != nil {
				t.Fatal(err)
			}
			if len(failed) != c.want {
				t.Errorf("the test failed with %q, want %d failures", failed, c.want)
			}
			if c.want > len(n.Destroyed())-before {
				t.Errorf("recorded: %v", n.Destroyed())
			}
		})
	}
}

func remove(keep bool) func(*nomadtest.Nomad, string, scheduler.Observed) error {
	return func(n *nomadtest.Nomad, id string, o scheduler.Observed) error {
		n.StopByHand(id)
		ctx := context.Background()
		list, err := n.List(ctx, "c1")
		if err != nil || len(list) != 1 {
			return fmt.Errorf("%d listed: %w", len(list), err)
		}
		return n.Remove(ctx, scheduler.Job{
			SandboxID: id, ClusterID: "c1", Birth: o.Birth, ModifyIndex: list[0].ModifyIndex, KeepWorkspace: keep,
		})
	}
}

func removeWorkspace(n *nomadtest.Nomad, id string, o scheduler.Observed) error {
	n.PurgeByHand(id)
	return n.RemoveWorkspace(context.Background(), scheduler.Workspace{SandboxID: id, ClusterID: "c1", Birth: o.Birth})
}

func TestNomad_LateCallsLose(t *testing.T) {
	n := nomadtest.NewNomad(t, nomadtest.Options{}, nomadtest.NewSecrets(), nil)
	n.AddBorn("a", "c1", "c1/aa/1")
	n.Change("a")
	for _, index := range []uint64{0, 1} {
		err := n.Remove(t.Context(), scheduler.Job{SandboxID: "a", ClusterID: "c1", Birth: "c1/aa/1", ModifyIndex: index})
		if fsm.CodeOf(err) != fsm.CodeConflict {
			t.Errorf("a removal with index %d: %v", index, err)
		}
	}
	if err := n.RemoveWorkspace(t.Context(),
		scheduler.Workspace{SandboxID: "a", ClusterID: "c1", Birth: "c1/aa/1"}); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Errorf("removing the workspace of a job: %v", err)
	}
	n.PurgeByHand("a")
	for _, w := range []scheduler.Workspace{
		{
			SandboxID: "a",
			ClusterID: "c1",
			Birth:     "c1/aa/2",
		}, {SandboxID: "a", ClusterID: "c1"}, {SandboxID: "a", ClusterID: "c2", Birth: "c1/aa/1"},
		{SandboxID: "a", ClusterID: "c1", Birth: "c1/aa/1", ID: "another"},
	} {
		if err := n.RemoveWorkspace(t.Context(), w); err != nil {
			t.Error(err)
		}
	}
	if !n.HasVolume("a") || len(n.Destroyed()) != 0 {
		t.Errorf("destroyed: %v", n.Destroyed())
	}
}
