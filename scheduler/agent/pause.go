package agent

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// runningPage is the page size when listing running conversations. It is small because each
// conversation comes in full.
const runningPage = 20

// Paused is the result of PauseAll.
type Paused struct {
	// Conversations is how many were asked to pause. Interrupted is how many of them were
	// interrupted because their step took too long.
	Conversations, Interrupted int
	// StillRunning is how many were still running at the end. They count as failed when the sandbox
	// starts again.
	StillRunning int
}

// PauseAll prepares the agent server for the stop of its sandbox (PROTOCOL.md, "Graceful pause").
// Every running conversation pauses after its current step. After two thirds of Config.PauseTimeout
// those still running are interrupted. Then the server flushes its data. PauseAll returns within
// PauseTimeout plus ProbeTimeout.
//
// With resumes the conversations go on by themselves when the server starts again. That is for a stop
// that nobody asked for, such as a drain's.
//
// The scheduler calls it before Runner.Stop, which follows in any case, so it only logs an error.
// ErrUnreachable may mean that nothing is left to pause.
func (c *Client) PauseAll(ctx context.Context, baseURL, key string, resumes bool) (Paused, error) {
	var did Paused
	begin := time.Now()
	within, cancel := context.WithTimeout(ctx, c.cfg.PauseTimeout)
	defer cancel()
	told := map[string]bool{}
	broken := map[string]bool{}
	pause, interrupt := "pause", "interrupt"
	if resumes {
		pause, interrupt = pause+"?resume=true", interrupt+"?resume=true"
	}
	var errs []error
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, c.cfg.PauseTimeout/12) {
		running, err := c.running(within, baseURL, key)
		if err != nil {
			errs = append(errs, inTime(ctx, within, err))
			break
		}
		did.StillRunning = len(running)
		if len(running) == 0 {
			break
		}
		late := time.Since(begin) > c.cfg.PauseTimeout*2/3
		errs = append(errs, inTime(ctx, within, c.tell(within, baseURL, key, running, pause, told)))
		if late {
			errs = append(errs, inTime(ctx, within, c.tell(within, baseURL, key, running, interrupt, broken)))
		}
		if !pauseFor(within, wait) {
			break
		}
	}
	did.Conversations, did.Interrupted = len(told), len(broken)
	if err := errors.Join(errs...); errors.Is(err, ErrUnreachable) && within.Err() == nil {
		return did, err
	}
	// The flush has its own timeout, so that a slow conversation does not cost the others their
	// data.
	last, done := context.WithTimeout(ctx, c.cfg.ProbeTimeout)
	defer done()
	err := errors.Join(append(errs, c.PreparePause(last, baseURL, key))...)
	if ctx.Err() != nil {
		return did, ctx.Err()
	}
	if err == nil && did.StillRunning > 0 {
		err = &Error{
			Op:     "pause all",
			Kind:   ErrUnavailable,
			Detail: strconv.Itoa(did.StillRunning) + " conversations did not pause in time",
		}
	}
	return did, err
}

// inTime replaces an error caused by PauseAll's own timeout.
func inTime(ctx, within context.Context, err error) error {
	if err == nil || ctx.Err() != nil || within.Err() == nil {
		return err
	}
	return &Error{Op: "pause all", Kind: ErrUnreachable, Detail: "no answer in time"}
}

// tell sends "pause" or "interrupt", with its query, to the conversations not in asked. A conversation that has
// ended refuses with 400, which is no error.
func (c *Client) tell(
	ctx context.Context,
	baseURL, key string,
	ids []string,
	what string,
	asked map[string]bool,
) error {
	for _, id := range ids {
		if asked[id] {
			continue
		}
		r := request{op: strings.TrimSuffix(what, "?resume=true") + " conversation", method: http.MethodPost, key: key,
			url: baseURL + "/api/conversations/" + url.PathEscape(id) + "/" + what}
		if err := c.call(ctx, c.cfg.ProbeTimeout, r, nil); err != nil && !errors.Is(err, ErrRefused) {
			return err
		}
		asked[id] = true
	}
	return nil
}

// running returns the ids of the running conversations. It reads at most 50 pages; the caller
// repeats it.
func (c *Client) running(ctx context.Context, baseURL, key string) ([]string, error) {
	var ids []string
	token := ""
	for range 50 {
		q := url.Values{"status": {"running"}, "limit": {strconv.Itoa(runningPage)}}
		if token != "" {
			q.Set("page_id", token)
		}
		var page struct {
			Items []struct {
				ID              string `json:"id"`
				ExecutionStatus string `json:"execution_status"`
			} `json:"items"`
			NextPageID string `json:"next_page_id"`
		}
		r := request{
			op:     "find running conversations",
			method: http.MethodGet,
			key:    key,
			url:    baseURL + "/api/conversations/search?" + q.Encode(),
		}
		if err := c.call(ctx, c.cfg.ProbeTimeout, r, &page); err != nil {
			return ids, err
		}
		for _, i := range page.Items {
			if i.ExecutionStatus == "running" && i.ID != "" {
				ids = append(ids, i.ID)
			}
		}
		if page.NextPageID == "" || page.NextPageID == token {
			break
		}
		token = page.NextPageID
	}
	return ids, nil
}

// pauseFor sleeps for d; false if ctx ended first.
func pauseFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
