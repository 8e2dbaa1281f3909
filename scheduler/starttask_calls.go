package scheduler

import (
	"context"
	"errors"
	"sync"
	"time"
)

// How long a call may take before it is one of the slow ones, and how many more
// of those there may be.
const (
	callHurry  = time.Second
	cloneHurry = 20 * time.Second
	slowCalls  = 4
)

// calls bounds the calls of start tasks to agent servers, which may take minutes:
// a sandbox that is slow must not keep the others waiting. Every user has a share
// of the slots. A call that is not over in time goes on among the slow ones if
// there is room, and else is cut off and made anew when its turn among them comes.
type calls struct {
	hurry       time.Duration
	quick, slow *shared
}

func newCalls(size int, hurry time.Duration) *calls {
	return &calls{hurry: hurry, quick: newShared(size, false), slow: newShared(size*slowCalls, false)}
}

var errCutOff = errors.New("the call is slow, and waits for its turn among the slow ones")

// do makes a call of the user's when its turn comes. late says whether the one
// before was slow, and is kept true to that.
func (c *calls) do(ctx context.Context, user string, late *bool, fn func(ctx context.Context) outcome) outcome {
	line := c.quick
	if *late {
		line = c.slow
	}
	leave := line.enter(ctx, user)
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
		room := c.slow.tryEnter(user)
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
