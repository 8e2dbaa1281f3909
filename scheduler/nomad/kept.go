package nomad

import (
	"context"
	"sync"
	"time"
)

// keptFor bounds how long a listing stands for the next ones: a Nomad that was restored may come back to
// an index with something else.
const keptFor = 10 * time.Minute

// nothing is the prefix of no id. A listing of it answers with the index of the whole table, and costs
// Nomad and us no more than the call.
const nothing = "00000000-0000-0000-0000-000000000000"

// kept is the last listing of one of Nomad's tables.
type kept[T any] struct {
	mu    sync.Mutex
	rows  []T
	index uint64
	at    time.Time
}

// read returns the rows of the table and their index: those of the last listing when the table has not
// changed since, as now says, and else what list reads. The rows are shared.
func (k *kept[T]) read(
	ctx context.Context, now func(context.Context) (uint64, error), list func(context.Context) ([]T, uint64, error),
) ([]T, uint64, error) {
	k.mu.Lock()
	rows, index, at := k.rows, k.index, k.at
	k.mu.Unlock()
	if index > 0 && time.Since(at) < keptFor {
		if is, err := now(ctx); err != nil || is == index {
			return rows, index, err
		}
	}
	rows, index, err := list(ctx)
	if err != nil {
		return nil, 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rows, k.index, k.at = rows, index, time.Now()
	return rows, index, nil
}

// tableIndex returns the index of the table that the endpoint lists.
func (r *Runner) tableIndex(op, endpoint string) func(context.Context) (uint64, error) {
	return func(ctx context.Context) (index uint64, err error) {
		err = r.call(ctx, op, func(ctx context.Context) error {
			q := query(ctx)
			q.Prefix = nothing
			var none []struct{}
			meta, err := r.client.Raw().Query(endpoint, &none, q)
			if err == nil {
				index = meta.LastIndex
			}
			return err
		})
		return index, err
	}
}
