package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// lifecycle is the story of starting and stopping: each thing that is started
// names its undoing on the next line, and stop tells the story backwards.
// It is used from one goroutine.
type lifecycle struct {
	undo []undoing
	// cause is what the contexts of the parts end with; nil is an ordinary end.
	cause error
	// ended receives the name and error of a part that ended without being
	// asked to.
	ended chan error
}

type undoing struct {
	name string
	fn   func(context.Context) error
}

func newLifecycle() *lifecycle {
	return &lifecycle{ended: make(chan error, 1)}
}

// onStop registers an undoing. Its context bounds how gently it may be done;
// after that it must still be done, at once.
func (l *lifecycle) onStop(name string, fn func(context.Context) error) {
	l.undo = append(l.undo, undoing{name: name, fn: fn})
}

// start runs fn in a goroutine until stop comes to it: then fn's context ends
// and stop waits for fn. When fn ends earlier, ended hears of it.
func (l *lifecycle) start(name string, fn func(context.Context) error) {
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
			default: // another was first; stop reports this one
			}
		}
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		done <- err
	}()
	l.onStop(name, func(context.Context) error {
		cancel(l.cause)
		return <-done
	})
}

// stop undoes everything, last first, and never skips a step. The gentle part
// of all steps together is bounded by grace. Errors are joined, each with the
// name of its step.
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
