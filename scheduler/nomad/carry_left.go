package nomad

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/scheduler"
)

// carried are the jobs beside workspaces that this process runs, by id.
type carried struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (c *carried) begin(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids == nil {
		c.ids = map[string]bool{}
	}
	c.ids[id] = true
}

func (c *carried) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ids, id)
}

func (c *carried) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ids[id]
}

// EndLeft implements scheduler.Carrier. A job that the stream of a former leader fed can't be adopted:
// what it has read or written is not known.
func (r *Runner) EndLeft(ctx context.Context, clusterID string, ours func(birth string) bool) (ended int, err error) {
	var left []string
	err = r.call(ctx, "list jobs", func(ctx context.Context) error {
		q := query(ctx)
		q.Prefix = carryPrefix
		stubs, _, err := r.client.Jobs().ListOptions(&api.JobListOptions{Fields: &api.JobListFields{Meta: true}}, q)
		for _, s := range stubs {
			named := strings.HasPrefix(s.ID, carryPrefix+s.Meta[metaSandbox]+"-")
			if named && s.Meta[metaCluster] == clusterID && ours(s.Meta[metaBirth]) && !r.carried.has(s.ID) {
				left = append(left, s.ID)
			}
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	var failed []error
	for _, id := range left {
		switch err := r.deregister(ctx, id, true); {
		case err == nil:
			ended++
		case !errors.Is(err, errNotFound):
			failed = append(failed, err)
		}
	}
	return ended, errors.Join(failed...)
}

var _ scheduler.Carrier = (*Runner)(nil)
