package apifuzz

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// Config configures a run.
type Config struct {
	// Document is the API's description.
	Document []byte
	// Seed decides every request. Workers is the number of concurrent senders.
	Seed    uint64
	Workers int
	// For is the duration of the run.
	For time.Duration
	// Deadline is when a request without a response is a failure. It must exceed the API's own
	// timeouts.
	Deadline time.Duration
	// Fault names a fault since the time, "" for none. It is called for responses that a fault
	// would excuse. nil means that there are no faults.
	Fault func(since time.Time) string
}

// Report is the result of a run.
type Report struct {
	Requests int
	Statuses map[int]int
	// Refused counts the 401s by caller.
	Refused    map[string]int
	Operations map[string]int
	// Succeeded counts the 2xx by operation.
	Succeeded map[string]int
	// Good is the number of valid requests, Passed the number of those with a 2xx.
	Good, Passed int
	Snapshots    int
	Failures     []Failure
}

// maxFailures is the number of failures that ends a run.
const maxFailures = 20

// snapshotEvery is the interval at which B's objects are checked.
const snapshotEvery = 3 * time.Second

// walk is a run in progress.
type walk struct {
	cfg    Config
	world  *World
	list   []*operation
	client *http.Client

	mu     sync.Mutex
	report Report
	stop   context.CancelFunc
}

// Walk sends requests until the time is up or there are too many failures.
func (w *World) Walk(ctx context.Context, cfg Config) (Report, error) {
	list, err := describe(cfg.Document)
	if err != nil {
		return Report{}, err
	}
	if cfg.Fault == nil {
		cfg.Fault = func(time.Time) string { return "" }
	}
	err = testcluster.Await(patience, w.settled)
	if err != nil {
		return Report{}, err
	}
	before, err := w.snapshot()
	if err != nil {
		return Report{}, fmt.Errorf("looking at what is B's: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, cfg.For)
	defer stop()
	run := &walk{
		cfg:   cfg,
		world: w,
		list:  list,
		stop:  stop,
		report: Report{
			Statuses:   map[int]int{},
			Refused:    map[string]int{},
			Operations: map[string]int{},
			Succeeded:  map[string]int{},
		},
	}
	transport := &http.Transport{MaxIdleConnsPerHost: cfg.Workers, DisableCompression: true}
	defer transport.CloseIdleConnections()
	run.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var workers sync.WaitGroup
	for i := range cfg.Workers {
		workers.Go(func() { run.work(ctx, rand.New(rand.NewPCG(cfg.Seed, uint64(i)))) })
	}
	workers.Go(func() { run.watch(ctx, before) })
	workers.Wait()
	if err := run.compare(before); err != nil {
		return run.report, err
	}
	return run.report, nil
}

// work sends one request after the other.
func (k *walk) work(ctx context.Context, rng *rand.Rand) {
	m := &maker{rng: rng, world: k.world, list: k.list}
	for ctx.Err() == nil {
		r := m.next()
		begin := time.Now()
		a, refused, err := r.send(k.client, k.cfg.Deadline)
		if refused {
			continue
		}
		fault := ""
		if err != nil || a.status == http.StatusServiceUnavailable {
			fault = k.cfg.Fault(begin)
		}
		k.note(r, a, err, fault)
	}
}

// note counts a response and records its failures.
func (k *walk) note(r *request, a answer, err error, fault string) {
	var found []Failure
	switch {
	case err == nil:
		found = k.world.judge(r, a, fault)
		if !r.elsewhere { // key lists contain the keys that the run needs
			k.world.learn(r.op, r.caller, a.body)
		}
	case errors.Is(err, context.DeadlineExceeded):
		found = []Failure{
			{Rule: fmt.Sprintf("no answer within %s", k.cfg.Deadline), Request: r.String(), Detail: err.Error()},
		}
	case fault == "" && r.missing == 0 && len(r.body) < 1<<20 && r.sound:
		found = []Failure{{Rule: "the connection broke off", Request: r.String(), Detail: err.Error()}}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report.Requests++
	k.report.Statuses[a.status]++
	k.report.Operations[r.op.id]++
	if a.status == http.StatusUnauthorized {
		k.report.Refused[r.caller.name]++
	}
	if r.sound {
		k.report.Good++
		if a.status/100 == 2 {
			k.report.Passed++
			k.report.Succeeded[r.op.id]++
		}
	}
	k.report.Failures = append(k.report.Failures, found...)
	if len(k.report.Failures) >= maxFailures {
		k.stop()
	}
}

// watch checks B's objects periodically.
func (k *walk) watch(ctx context.Context, before string) {
	tick := time.NewTicker(snapshotEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if k.compare(before) != nil {
				k.stop()
				return
			}
			_ = k.world.renewSandbox() // the next pass retries after a fault
		}
	}
}

// compare checks B's objects once. Its error means that this was not possible.
func (k *walk) compare(before string) error {
	var now string
	err := testcluster.Await(patience, func() (err error) {
		now, err = k.world.snapshot()
		return err
	})
	if err != nil {
		return fmt.Errorf("looking at what is B's: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report.Snapshots++
	if now != before {
		k.report.Failures = append(k.report.Failures,
			Failure{Rule: "what is B's changed", Request: "(one of those before)", Detail: before + "\n--- and now\n" + now})
		k.stop()
	}
	return nil
}
