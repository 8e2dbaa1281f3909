package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLifecycle_StopUndoesBackwardsAndSkipsNothing(t *testing.T) {
	l := newLifecycle()
	var undone []string
	for _, name := range []string{"first", "second", "third"} {
		l.onStop(name, func(context.Context) error {
			undone = append(undone, name)
			if name == "first" {
				return nil
			}
			return errors.New("no")
		})
	}
	err := l.stop(time.Minute)
	if diff := cmp.Diff([]string{"third", "second", "first"}, undone); diff != "" {
		t.Errorf("order (-want +got)\n%s", diff)
	}
	for _, want := range []string{"stopping third: no", "stopping second: no"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if err := l.stop(time.Minute); err != nil || len(undone) != 3 {
		t.Errorf("the second stop did something: %v, %v", err, undone)
	}
}

func TestLifecycle_PartThatEndsByItselfIsHeard(t *testing.T) {
	for name, end := range map[string]error{"ended by itself": nil, "broken": errors.New("broken")} {
		l := newLifecycle()
		l.start("part", func(context.Context) error { return end })
		if err := <-l.ended; !strings.Contains(err.Error(), "part: "+name) {
			t.Errorf("ended says %v, want %q", err, name)
		}
		if err := l.stop(time.Minute); err != nil {
			t.Errorf("stop repeats the failure: %v", err)
		}
	}
}

func TestLifecycle_StopWaitsForEachPart(t *testing.T) {
	l := newLifecycle()
	var order []string
	for _, name := range []string{"lower", "upper"} {
		l.start(name, func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, name)
			return ctx.Err()
		})
	}
	if err := l.stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"upper", "lower"}, order); diff != "" {
		t.Errorf("order (-want +got)\n%s", diff)
	}
}

// TestLifecycle_OneListForWhatRunsAndWhatWasOnlyMade: stop drains one list, whether its parts run yet
// or not.
func TestLifecycle_OneListForWhatRunsAndWhatWasOnlyMade(t *testing.T) {
	for began, want := range map[bool][]string{
		false: {"upper closed", "lower closed", "base"},
		true:  {"upper ended", "middle ended", "lower ended", "base"},
	} {
		l := newLifecycle()
		var order []string
		note := func(what string) error { order = append(order, what); return nil }
		part := func(name string) func(context.Context) error {
			return func(ctx context.Context) error { <-ctx.Done(); return note(name + " ended") }
		}
		l.onStop("base", func(context.Context) error { return note("base") })
		l.add("lower", part("lower"), func() error { return note("lower closed") })
		l.add("middle", part("middle"), nil)
		l.add("upper", part("upper"), func() error { return note("upper closed") })
		if began {
			l.begin()
		}
		if err := l.stop(time.Minute); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Errorf("begun: %v (-want +got)\n%s", began, diff)
		}
	}
}
