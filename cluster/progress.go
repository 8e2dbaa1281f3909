package cluster

import (
	"context"
	"errors"
)

// Progress returns nil when Raft's main loop answers, an error when it does not before ctx ends. A
// watchdog of the process asks it. The loop waits for the disk and, through a short queue, for the
// store: it stops answering when one of them does. A node that starts or stops is not asked.
func (n *Node) Progress(ctx context.Context) error {
	ctx, leave, err := n.enter(ctx, 0)
	if err != nil {
		return nil // it stops
	}
	defer leave()
	r := n.raft.Load()
	if r == nil {
		return nil
	}
	answered := make(chan struct{})
	n.futures.Go(func() {
		_ = r.VerifyLeader().Error() // every answer is one, that of a follower too
		close(answered)
	})
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		if n.stopping.Err() != nil {
			return nil
		}
		return errors.New("raft's main loop does not answer")
	}
}
