package starttask

import (
	"context"
	"errors"
	"sync"
	"time"

	"bivouac.dev/bivouac/scheduler/slots"
)

// callHurry and cloneHurry are how long a call may take before it counts as slow. slowCalls is
// the factor between slow and quick slots.
const (
	callHurry  = time.Second
	cloneHurry = 20 * time.Second
	slowCalls  = 4
)

// calls bounds the calls of start tasks to agent servers, which may take minutes: a slow sandbox
// must not delay the others. Every user has a share of the slots. A call that takes too long
// continues in a slow slot if one is free. If not, it is cancelled and repeated when it gets a
// slow slot.
type calls struct {
	hurry       time.Duration
	quick, slow *slots.Shared
}

func newCalls(size int, hurry time.Duration) *calls {
	return &calls{hurry: hurry, quick: slots.New(size, false), slow: slots.New(size*slowCalls, false)}
}

var errCutOff = errors.New("the call is slow, and waits for its turn among the slow ones")

// do makes a call for the user when a slot is free. late says whether the previous call was slow,
// and is updated.
func (c *calls) do(ctx context.Context, user string, late *bool, fn func(ctx context.Context) outcome) outcome {
	line := c.quick
	if *late {
		line = c.slow
	}
	leave := line.Enter(ctx, user)
	if leave == nil {
		return outcome{err: ctx.Err()}
	}
	begin := time.Now()
	if *late {
		defer leave()
		o := fn(ctx)
		*late = time.Since(begin) > c.hurry
		return o
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	over := false
	timer := time.AfterFunc(c.hurry, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		room := c.slow.TryEnter(user)
		if room == nil {
			cancel(errCutOff)
			return
		}
		leave()
		leave = room
	})
	defer timer.Stop()
	o := fn(ctx)
	mu.Lock()
	defer mu.Unlock()
	over = true
	leave()
	*late = time.Since(begin) >= c.hurry
	if o.err != nil && errors.Is(context.Cause(ctx), errCutOff) {
		return outcome{}
	}
	return o
}
