package nomad_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

var (
	crashed = map[string]any{"Type": "Terminated", "DisplayMessage": "Exit Code: 42"}
	started = map[string]any{"Type": "Started"}
)

// crashedBehindSilent is a Nomad with 35 crashed sandboxes on a client that never responds, and
// one that runs elsewhere.
func crashedBehindSilent(t *testing.T) *fakeNomad {
	t.Parallel()
	f := newFake(t, nil)
	for i := range 35 {
		f.job(fmt.Sprintf("crashed-%d", i), "silent", "failed", crashed)
	}
	f.job("fine", "fine", "running", started)
	f.on("GET /v1/client/fs/logs/", silent)
	return f
}

func TestRunner_CrashedBehindASilentClient_ListingIsNotHeldUp(t *testing.T) {
	f := crashedBehindSilent(t)
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	list, err := f.List(ctx, "c1")
	t.Logf("the first listing took %s: %d sandboxes, error %v", time.Since(begin).Round(time.Millisecond), len(list), err)
	if err != nil || len(list) != 36 || time.Since(begin) > 5*time.Second {
		t.Errorf("a listing with 35 crashed sandboxes behind a silent client took %s: %d sandboxes, %v", time.Since(begin),
			len(list), err)
	}
}

func TestRunner_CrashedBehindASilentClient_StreamIsNotHeldUp(t *testing.T) {
	f := crashedBehindSilent(t)
	w := f.watch()
	f.frames <- frame(200, map[string]any{"Job": jobRow("new")},
		map[string]any{"Allocation": allocRow("new", "fine", "running", started)})
	took := w.await(t, "the stream open", "new", patience,
		func(_ scheduler.Observed, reported bool) bool { return reported })
	t.Logf("the stream brought its first news after %s", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("the stream brought its first news only after %s", took)
	}
	// A crash now is reported too, without its log, and delays nothing either.
	for i := range uint64(5) {
		id := fmt.Sprintf("late-%d", i)
		f.frames <- frame(201+i, map[string]any{"Job": jobRow(id)},
			map[string]any{"Allocation": allocRow(id, "silent", "failed", crashed)})
	}
	f.frames <- frame(300, map[string]any{"Job": jobRow("newer")},
		map[string]any{"Allocation": allocRow("newer", "fine", "running", started)})
	if took := w.await(t, "news after a crash", "newer", patience,
		func(_ scheduler.Observed, reported bool) bool { return reported }); took > 4*time.Second {
		t.Errorf("five crashes behind a silent client held up the next news for %s", took)
	}
	w.await(t, "the crash known", "late-4", patience, func(o scheduler.Observed, _ bool) bool { return o.Failure != nil })
}

func TestRunner_CrashIsExplainedWhenItsLogCanBeRead(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil)
	f.job("old", "fine", "failed", crashed)
	f.on("GET /v1/client/fs/logs/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "{\"Data\": %q}\n", "b3V0IG9mIHBsYW5zCg==") // out of plans
	})
	words := func(o scheduler.Observed, _ bool) bool {
		return o.Failure != nil && strings.Contains(o.Failure.Detail, "Exit Code: 42; it last wrote: out of plans")
	}
	w := f.watch()
	w.await(t, "a crash of before is explained", "old", patience, words)
	// A crash that just happened is reported with its log at once.
	f.frames <- frame(200, map[string]any{"Job": jobRow("new")},
		map[string]any{"Allocation": allocRow("new", "fine", "failed", crashed)})
	w.await(t, "a new crash is explained", "new", patience, func(o scheduler.Observed, reported bool) bool {
		if reported && o.Failure != nil && !words(o, reported) {
			t.Errorf("reported without its crash log first: %v", o.Failure)
		}
		return words(o, reported)
	})
	list, err := f.List(t.Context(), "c1")
	if err != nil || len(list) != 1 || !words(list[0], true) {
		t.Errorf("a listing after that: %+v, %v", list, err)
	}
}

func TestRunner_WorkspaceOnAClientThatIsAway_IsNotWaitedFor(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *nomad.Config) { c.CallTimeout = 200 * time.Millisecond })
	f.add("/v1/volumes", map[string]any{"ID": "v1", "Name": "sandbox-a", "NodeID": "n1"})
	volume := map[string]any{"ID": "v1", "Name": "sandbox-a", "NodeID": "n1", "HostPath": "/w",
		"Constraints": []map[string]any{
			{"LTarget": "bivouac_cluster=c1", "Operand": "is_set"}, {"LTarget": "bivouac_birth=c1/n/7", "Operand": "is_set"},
		}}
	var status atomic.Value
	status.Store("ready")
	f.on("GET /v1/volume/host/v1", answer(func() any { return volume }))
	f.on("GET /v1/node/n1", answer(func() any { return map[string]any{"ID": "n1", "Status": status.Load()} }))
	remove := func() *scheduler.ClientAway {
		var away *scheduler.ClientAway
		err := f.Remove(t.Context(), scheduler.Job{SandboxID: "a", ClusterID: "c1", Birth: "c1/n/7"})
		if !errors.As(err, &away) || fsm.CodeOf(err) != fsm.CodeScheduler {
			t.Fatalf("removing what a %s client has: %v", status.Load(), err)
		}
		return away
	}
	const deletion = "DELETE /v1/volume/host/v1"
	f.on(deletion, silent)
	if away := remove(); away.NodeID != "n1" {
		t.Errorf("away is %+v", away)
	}
	f.on(deletion, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "No path to node", http.StatusInternalServerError)
	})
	_ = remove()
	before := f.count(deletion)
	for _, away := range []string{"disconnected", "down"} {
		status.Store(away)
		_ = remove()
	}
	if before != 2 || f.count(deletion) != before {
		t.Errorf("%d deletions were tried, %d of them while Nomad said that the client is away", f.count(deletion),
			f.count(deletion)-before)
	}
	// One that an operator gave up is not waited for.
	f.on(deletion, answer(func() any { return map[string]any{} }))
	lost := scheduler.Job{SandboxID: "a", ClusterID: "c1", Birth: "c1/n/7", Lost: []string{"n1"}}
	if err := f.Remove(t.Context(), lost); err != nil || f.count(deletion) != before+1 {
		t.Errorf("removing what a lost client has: %v, %d deletions", err, f.count(deletion)-before)
	}
}

// answer is a handler that responds with what fn returns.
func answer(fn func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(fn()) }
}
