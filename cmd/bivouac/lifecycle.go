package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// lifecycle starts and stops the parts of a program. It is one list: parts start in its order, and
// stop drains it in reverse, parts that were only made among them. One goroutine uses it.
type lifecycle struct {
	undo []undoing
	// cause is the cause with which the contexts of the parts end; nil is a normal end.
	cause error
	// ended receives the name and error of a part that ended without being asked to.
	ended chan error
}

type undoing struct {
	name string
	fn   func(context.Context) error
	// run is what begin runs; nil once it does, and for what does not run.
	run func(context.Context) error
}

func newLifecycle() *lifecycle {
	return &lifecycle{ended: make(chan error, 1)}
}

// onStop registers a stop function. Its context bounds the graceful part. When that has ended,
// fn still has to stop the part, at once.
func (l *lifecycle) onStop(name string, fn func(context.Context) error) {
	l.undo = append(l.undo, undoing{name: name, fn: fn})
}

// add registers a part that begin runs. unused closes what it holds if stop comes first; it may be
// nil.
func (l *lifecycle) add(name string, run func(context.Context) error, unused func() error) {
	l.undo = append(l.undo, undoing{name: name, run: run, fn: func(context.Context) error {
		if unused == nil {
			return nil
		}
		return unused()
	}})
}

// begin runs all parts that were added, in order.
func (l *lifecycle) begin() {
	for i := range l.undo {
		if u := &l.undo[i]; u.run != nil {
			u.fn, u.run = l.launch(u.name, u.run), nil
		}
	}
}

// start registers a part and runs it.
func (l *lifecycle) start(name string, fn func(context.Context) error) {
	l.onStop(name, l.launch(name, fn))
}

// launch runs fn in a goroutine. stop ends fn's context and waits for fn. If fn ends earlier, ended
// receives it.
func (l *lifecycle) launch(name string, fn func(context.Context) error) (stop func(context.Context) error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() {
		err := fn(ctx)
		if ctx.Err() == nil {
			if err == nil {
				err = errors.New("ended by itself")
			}
			select {
			case l.ended <- fmt.Errorf("%s: %w", name, err):
				err = nil
			default: // another part ended first; stop reports this one
			}
		}
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		done <- err
	}()
	return func(context.Context) error {
		cancel(l.cause)
		return <-done
	}
}

// stop calls all stop functions in reverse order and skips none. grace bounds their graceful
// parts together. The errors are joined, each with its part's name.
func (l *lifecycle) stop(grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	var errs []error
	for i := len(l.undo) - 1; i >= 0; i-- {
		if err := l.undo[i].fn(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stopping %s: %w", l.undo[i].name, err))
		}
	}
	l.undo = nil
	return errors.Join(errs...)
}
