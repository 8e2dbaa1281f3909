package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// streamSilence is how long the event stream may be silent: Nomad sends a heartbeat every ten
// seconds.
const streamSilence = 35 * time.Second

// watch is one Watch: its data and its callback. One goroutine uses all of it.
type watch struct {
	r         *Runner
	clusterID string
	fn        func(scheduler.Observed)
	p         *observation
	readers   *readers
}

// Watch implements scheduler.Runner. It lists first, so that every event finds its job, and
// streams from where the listing began.
func (r *Runner) Watch(ctx context.Context, clusterID string, fn func(scheduler.Observed)) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	p, err := r.listing(ctx)
	if err != nil {
		cancel()
		return stopQuietly(outer, err)
	}
	w := &watch{r: r, clusterID: clusterID, fn: fn, p: p, readers: r.newReaders(ctx)}
	frames, ended := make(chan *frame), make(chan error, 1)
	w.readers.wg.Go(func() {
		ended <- r.stream(ctx, p.index, func(f *frame) {
			select {
			case frames <- f:
			case <-ctx.Done():
			}
		})
	})
	defer w.readers.wg.Wait()
	defer cancel()
	p.awaitGone()
	w.tell(p.ids(), false)
	return stopQuietly(outer, w.run(ctx, frames, ended))
}

// run reports what the stream, the readers and the listings bring until the stream ends.
func (w *watch) run(ctx context.Context, frames <-chan *frame, ended <-chan error) error {
	tick := time.NewTicker(purgedInterval)
	defer tick.Stop()
	answers, again := make(chan purgedAnswer, 1), make(chan *observation, 1)
	asking, first := false, true
	for {
		select {
		case f := <-frames:
			if first && f.mayFollowGap(w.p.index) {
				w.p.expectMerge()
				w.readers.wg.Go(func() { w.listAgain(ctx, again) })
			}
			first = false
			for _, e := range f.Events {
				if a := e.Payload.Allocation; a != nil {
					w.r.see(a)
				}
			}
			w.tell(w.p.take(f), true)
		case c := <-w.readers.read:
			delete(w.readers.asked, c.alloc)
			w.tell([]string{c.job}, true)
		case <-tick.C:
			w.tell(w.readers.over(), false)
			w.tell(w.p.settled(time.Now()), true)
			if ids := w.p.due(time.Now()); len(ids) > 0 && !asking {
				asking = true
				w.readers.wg.Go(func() { answers <- w.r.askPurged(ctx, ids) })
			}
		case a := <-answers:
			asking = false
			w.tell(w.p.answered(a, time.Now()), true)
		case p := <-again:
			w.tell(w.p.merge(p), true)
		case err := <-ended:
			return err
		}
	}
}

// listAgain lists what happened before the stream's first frame. If that fails, the scheduler's
// next listing has it.
func (w *watch) listAgain(ctx context.Context, to chan<- *observation) {
	p, err := w.r.listing(ctx)
	if err != nil {
		w.r.log.Warn("listing at the beginning of the event stream failed", "error", err)
		p = newObservation() // of index 0, so that its merge changes nothing
	}
	to <- p // the buffer has a place for the only one
}

// tell reports jobs. The report of a crash waits for a moment, if it may, for the end of the
// task's log.
func (w *watch) tell(ids []string, mayWait bool) {
	for _, id := range ids {
		alloc := w.p.newest(id)
		o, known := w.r.explained(w.p.observe(w.clusterID, id), alloc)
		if !known && w.readers.ask(crash{id, alloc}) && mayWait {
			continue
		}
		delete(w.readers.waits, id)
		w.fn(o)
	}
}

// stream reads the event stream from index on until it breaks or ctx ends.
func (r *Runner) stream(ctx context.Context, index uint64, fn func(*frame)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(streamSilence, func() { cancel(errors.New("no heartbeat")) })
	defer silence.Stop()
	endpoint := fmt.Sprintf("/v1/event/stream?topic=Job&topic=Allocation&topic=Evaluation&topic=Node&index=%d", index)
	body, err := r.client.Raw().Response(endpoint, query(ctx))
	if err != nil {
		return mapError("open event stream", err)
	}
	defer body.Close()
	dec := json.NewDecoder(body)
	for {
		var f frame
		if err := dec.Decode(&f); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			if errors.Is(err, io.EOF) {
				err = errors.New("Nomad closed it")
			}
			return fsm.Errorf(fsm.CodeScheduler, "Nomad's event stream broke: %v", err)
		}
		silence.Reset(streamSilence)
		fn(&f)
	}
}

// stopQuietly turns the error of a call cancelled by its caller into nil.
func stopQuietly(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
