package nomad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/expirable"
	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/fault"
)

// Runner implements scheduler.Backend and scheduler.Logs on Nomad. It is safe for concurrent use.
// It caches only what does not change, or not soon.
type Runner struct {
	cfg    Config
	log    *slog.Logger
	client *api.Client
	// transport has the present token and certificates.
	transport *transport
	// metrics are of the calls.
	metrics *metrics
	// made caches volumes by id.
	made *lru.Cache[string, madeVolume]
	// homes caches the clients of volumes, by the volume's id.
	homes *lru.Cache[string, string]
	// seen caches allocations by id as Nomad last reported them.
	seen *lru.Cache[string, *allocFacts]
	// carried are the jobs beside workspaces that are this process's.
	carried carried
	// jobs and allocs are the last listings.
	jobs   kept[*jobFacts]
	allocs kept[*allocFacts]
	// facts caches clients by id, for minutes, because a client's configuration can change.
	facts    *expirable.LRU[string, clientFacts]
	capacity capacity
	// words caches the last output of crashed tasks, by allocation id.
	words *expirable.LRU[string, string]
	// life ends with Close. It is the context of calls that serve several callers.
	life context.Context
	end  context.CancelFunc
}

var _ scheduler.Backend = (*Runner)(nil)

// leastSeen is how many clients of volumes, and allocations, are cached at least. A listing that finds
// more makes the caches larger: one that is too small has everything read again each time.
const leastSeen = 16384

// New makes a Runner; it makes no calls.
func New(cfg Config) (*Runner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	carrier, err := newTransport(cfg)
	if err != nil {
		return nil, err
	}
	client, err := api.NewClient(&api.Config{
		Address: cfg.Address, Region: cfg.Region, Namespace: cfg.Namespace, HttpClient: &http.Client{Transport: carrier},
	})
	if err != nil {
		return nil, fmt.Errorf("nomad: making the client: %w", err)
	}
	made, err := lru.New[string, madeVolume](16384)
	if err != nil {
		return nil, err
	}
	homes, err := lru.New[string, string](leastSeen)
	if err != nil {
		return nil, err
	}
	seen, err := lru.New[string, *allocFacts](leastSeen)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	r := &Runner{
		life: life, end: end,
		cfg: cfg, log: cfg.Logger, client: client, transport: carrier, made: made, homes: homes, seen: seen,
		facts: expirable.NewLRU[string, clientFacts](1024, nil, 5*time.Minute),
		words: expirable.NewLRU[string, string](1024, nil, lastMemory),
	}
	r.metrics = newMetrics(cfg.Registerer)
	return r, nil
}

// Close ends calls that serve several callers and drops idle connections.
func (r *Runner) Close() {
	r.end()
	r.client.Close()
}

// call makes one call with a deadline, counts it and maps its error.
func (r *Runner) call(ctx context.Context, op string, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	begin := time.Now()
	fault.At("before", op)
	raw := fn(ctx)
	err := mapError(op, raw)
	fault.At("after", op)
	if denied := (*scheduler.Denied)(nil); errors.As(err, &denied) {
		denied.Path, denied.Capability = r.cfg.missing(op)
	}
	r.metrics.observe(op, begin, raw, err)
	return err
}

func query(ctx context.Context) *api.QueryOptions { return (&api.QueryOptions{}).WithContext(ctx) }
func write(ctx context.Context) *api.WriteOptions { return (&api.WriteOptions{}).WithContext(ctx) }

// info reads a job, nil when there is none.
func (r *Runner) info(ctx context.Context, id string) (*api.Job, error) {
	var job *api.Job
	err := r.call(ctx, "read job", func(ctx context.Context) error {
		var err error
		job, _, err = r.client.Jobs().Info(id, query(ctx))
		return err
	})
	if errors.Is(err, errNotFound) {
		return nil, nil
	}
	return job, err
}

// ours reports whether a job of the sandbox's name is the sandbox's.
func ours(job *api.Job, clusterID, sandboxID string) bool {
	return job.Meta[metaCluster] == clusterID && job.Meta[metaSandbox] == sandboxID
}

func stopped(job *api.Job) bool { return job.Stop != nil && *job.Stop }

// register registers the job if it still has the modify index, and returns its new one.
func (r *Runner) register(ctx context.Context, op string, job *api.Job, modifyIndex uint64) (uint64, error) {
	var now uint64
	err := r.call(ctx, op, func(ctx context.Context) error {
		resp, _, err := r.client.Jobs().EnforceRegister(job, modifyIndex, write(ctx))
		if err == nil {
			now = resp.JobModifyIndex
		}
		return err
	})
	return now, err
}

// changed is the error of a call that was meant for another state of the job.
func changed(id string, now, meant uint64) error {
	return fsm.Errorf(fsm.CodeConflict, "the Nomad job %s has modify index %d, not %d", id, now, meant)
}
