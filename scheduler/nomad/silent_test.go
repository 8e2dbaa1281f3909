package nomad_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/scheduler"
)

var (
	crashed = map[string]any{"Type": "Terminated", "DisplayMessage": "Exit Code: 42"}
	started = map[string]any{"Type": "Started"}
)

// crashedBehindSilent is a Nomad with 35 crashed sandboxes on a client that
// answers nobody, and one that runs elsewhere.
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
		t.Errorf("a listing with 35 crashed sandboxes behind a silent client took %s: %d sandboxes, %v", time.Since(begin), len(list), err)
	}
}

func TestRunner_CrashedBehindASilentClient_StreamIsNotHeldUp(t *testing.T) {
	f := crashedBehindSilent(t)
	w := f.watch()
	f.frames <- frame(200, map[string]any{"Job": jobRow("new")}, map[string]any{"Allocation": allocRow("new", "fine", "running", started)})
	took := w.await(t, "the stream open", "new", time.Minute, func(_ scheduler.Observed, told bool) bool { return told })
	t.Logf("the stream told its first news after %s", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("the stream told its first news only after %s", took)
	}
	// What crashes now is told too, without words, and holds up nothing either.
	for i := range uint64(5) {
		id := fmt.Sprintf("late-%d", i)
		f.frames <- frame(201+i, map[string]any{"Job": jobRow(id)}, map[string]any{"Allocation": allocRow(id, "silent", "failed", crashed)})
	}
	f.frames <- frame(300, map[string]any{"Job": jobRow("newer")}, map[string]any{"Allocation": allocRow("newer", "fine", "running", started)})
	if took := w.await(t, "news after a crash", "newer", time.Minute, func(_ scheduler.Observed, told bool) bool { return told }); took > 4*time.Second {
		t.Errorf("five crashes behind a silent client held up the next news for %s", took)
	}
	w.await(t, "the crash known", "late-4", 10*time.Second, func(o scheduler.Observed, _ bool) bool { return o.Failure != nil })
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
	w.await(t, "a crash of before is explained", "old", 10*time.Second, words)
	// A crash that just happened is told with its words at once.
	f.frames <- frame(200, map[string]any{"Job": jobRow("new")}, map[string]any{"Allocation": allocRow("new", "fine", "failed", crashed)})
	w.await(t, "a new crash is explained", "new", 10*time.Second, func(o scheduler.Observed, told bool) bool {
		if told && o.Failure != nil && !words(o, told) {
			t.Errorf("told without its words first: %v", o.Failure)
		}
		return words(o, told)
	})
	list, err := f.List(t.Context(), "c1")
	if err != nil || len(list) != 1 || !words(list[0], true) {
		t.Errorf("a listing after that: %+v, %v", list, err)
	}
}
