// Package bash reads what a command of a sandbox's shell prints (PROTOCOL.md, "Commands"): the
// scheduler, the API and the command line reach an agent server by ways of their own. It imports
// nothing of ours.
package bash

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// Output is a BashOutput event: a part of a command's output, or its end with the exit code.
type Output struct {
	ID        string  `json:"id"`
	Timestamp string  `json:"timestamp"`
	Kind      string  `json:"kind"`
	CommandID string  `json:"command_id"`
	Order     int     `json:"order"`
	ExitCode  *int    `json:"exit_code"`
	Stdout    *string `json:"stdout"`
	Stderr    *string `json:"stderr"`
	// DroppedBytes is at the end what the server has not kept of the output. It is our own member.
	DroppedBytes int `json:"dropped_bytes,omitempty"`
}

// Page is a page of them.
type Page struct {
	Items []Output `json:"items"`
}

// Pauses between two requests for a command that prints nothing.
const (
	shortPause = 50 * time.Millisecond
	longPause  = time.Second
)

// Read gives each the outputs of a command in order, until one ends it, and returns its exit code: -1
// if it was killed. get asks the agent server for a path of its API; a get that leaves the page empty
// is tried again.
func Read(
	ctx context.Context, id string, get func(ctx context.Context, path string, page *Page) error, each func(Output),
) (exitCode int, err error) {
	last := -1
	for pause := shortPause; ; pause = min(pause*2, longPause) {
		q := url.Values{
			"command_id__eq": {id}, "kind__eq": {"BashOutput"}, "sort_order": {"TIMESTAMP"}, "limit": {"100"},
		}
		if last >= 0 {
			q.Set("order__gt", strconv.Itoa(last))
		}
		var page Page
		if err := get(ctx, "/api/bash/bash_events/search?"+q.Encode(), &page); err != nil {
			return 0, err
		}
		for _, one := range page.Items {
			if one.Order <= last {
				continue
			}
			last, pause = one.Order, shortPause
			each(one)
			if one.ExitCode != nil {
				return *one.ExitCode, nil
			}
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return 0, ctx.Err()
		case <-t.C:
		}
	}
}
