// Package load is the closed loop that loads every system here: one goroutine per client, each
// of which sends its next request after the response to the last.
package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// errorPause keeps clients whose requests fail at once from using a whole core.
const errorPause = 2 * time.Millisecond

// hangs is how long after its planned end a load that hangs is given up.
const hangs = 20 * time.Second

// Options configures a load.
type Options struct {
	// Clients is the number of concurrent requests.
	Clients int
	// Warm is how long the load runs before the measurement, For the duration of the
	// measurement.
	Warm, For time.Duration
}

// Result is one measurement. Latencies are in microseconds.
type Result struct {
	Clients int     `json:"clients"`
	Ops     int64   `json:"ops"`
	Errors  int64   `json:"errors"`
	Seconds float64 `json:"seconds"`
	PerS    float64 `json:"per_s"`
	P50     int64   `json:"p50_us"`
	P90     int64   `json:"p90_us"`
	P99     int64   `json:"p99_us"`
	Max     int64   `json:"max_us"`
	// CPU is how many cores this process used during the measurement, Used its CPU time from
	// beginning to end.
	CPU  float64       `json:"cpu"`
	Used time.Duration `json:"-"`
	// Error is the first error.
	Error string `json:"error,omitempty"`
}

// Do sends one request, the n-th of a client. Both count from 0.
type Do func(ctx context.Context, client, n int) error

// Run runs the load until the time is up. It is an error if ctx ends first.
func Run(ctx context.Context, o Options, do Do) (Result, error) {
	begin := time.Now()
	from := begin.Add(o.Warm)
	until := from.Add(o.For)
	ctx, cancel := context.WithDeadline(ctx, until.Add(hangs))
	defer cancel()
	clients := make([]client, o.Clients)
	var all sync.WaitGroup
	for i := range clients {
		c := &clients[i]
		c.latency = hdrhistogram.New(1, time.Minute.Microseconds(), 3)
		all.Go(func() { c.run(ctx, i, from, until, do) })
	}
	start := cpuTime()
	var used time.Duration
	all.Go(func() {
		wait(ctx, from)
		at := cpuTime()
		wait(ctx, until)
		used = cpuTime() - at
	})
	all.Wait()
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("measuring: %w", context.Cause(ctx))
	}
	r := sum(clients, o, used)
	r.Used = cpuTime() - start
	return r, nil
}

func sum(clients []client, o Options, used time.Duration) Result {
	r := Result{Clients: o.Clients, Seconds: o.For.Seconds(), CPU: used.Seconds() / o.For.Seconds()}
	total := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
	for _, c := range clients {
		r.Ops += c.ops
		r.Errors += c.errors
		if c.first != nil && r.Error == "" {
			r.Error = c.first.Error()
		}
		total.Merge(c.latency)
	}
	r.PerS = float64(r.Ops) / r.Seconds
	r.P50, r.P90, r.P99 = total.ValueAtPercentile(50), total.ValueAtPercentile(90), total.ValueAtPercentile(99)
	r.Max = total.Max()
	return r
}

type client struct {
	latency     *hdrhistogram.Histogram
	ops, errors int64
	first       error
}

// run counts the responses between the two times.
func (c *client) run(ctx context.Context, i int, from, until time.Time, do Do) {
	for n := 0; ctx.Err() == nil; n++ {
		begin := time.Now()
		if !begin.Before(until) {
			return
		}
		err := do(ctx, i, n)
		end := time.Now()
		counts := !end.Before(from) && end.Before(until)
		switch {
		case err != nil:
			if counts && !errors.Is(err, context.Canceled) {
				c.errors++
				if c.first == nil {
					c.first = err
				}
			}
			wait(ctx, end.Add(errorPause))
		case counts:
			c.ops++
			_ = c.latency.RecordValue(max(1, end.Sub(begin).Microseconds()))
		}
	}
}

func wait(ctx context.Context, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// cpuTime returns this process's CPU time.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
