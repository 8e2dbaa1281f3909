package nomad_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// While Nomad does not return the free capacity, no start waits for the caller that asks, and
// none waits longer than its context.
func TestPlacement_SilentListOfClients_HoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.on("GET /v1/nodes", silent)
	start := func(ctx context.Context, id string) error {
		return f.Start(ctx,
			scheduler.Job{SandboxID: id, ClusterID: "c1", New: true, Template: fsm.Template{Driver: fsm.DriverRawExec}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- start(ctx, "first") }()
	if err := await(t.Context(), func() error {
		if f.count("GET /v1/nodes") == 0 {
			return errors.New("nobody has asked for the clients")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	short, end := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer end()
	_ = start(short, "second")
	t.Logf("a start that may take 200ms took %s", time.Since(begin).Round(time.Millisecond))
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("a start that may take 200ms waited %s", took)
	}
	begin = time.Now()
	if err := f.Remove(t.Context(), scheduler.Job{SandboxID: "other", ClusterID: "c1"}); err != nil {
		t.Error(err)
	}
	t.Logf("a removal beside it took %s", time.Since(begin).Round(time.Millisecond))
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("a removal waited %s for a start that waits for Nomad", took)
	}
	cancel()
	<-done
}
