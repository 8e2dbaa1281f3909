// Package webhook tells the control plane of conversations.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Limits of the webhooks.
const (
	postTime = 10 * time.Second
	// retryFor is how long one state is sent again before it is dropped.
	retryFor = 10 * time.Minute
	// flushTime is how long a pause waits for what is not sent.
	flushTime = 2 * time.Second
)

// Sender sends conversations to the control plane (PROTOCOL.md, "Webhooks"). One goroutine, Run,
// sends; of a conversation only the latest state is sent.
type Sender struct {
	// bases are tried in turn. Without any nothing is sent.
	bases  []string
	key    string
	client *http.Client
	logger *slog.Logger

	mu      sync.Mutex
	pending map[string]state // by conversation id
	// sent is closed when nothing is pending.
	sent chan struct{}
	wake chan struct{}

	// tails are the conversations whose events are sent; eventsSent is closed when none has more.
	tails      map[string]*tailOf
	eventsSent chan struct{}
	eventsWake chan struct{}
}

// state is what is sent of a conversation.
type state struct {
	updated time.Time
	body    any
}

// New returns a sender of a server whose key the control plane knows. Run sends.
func New(cfg config.Config) *Sender {
	w := &Sender{
		bases:   cfg.Webhooks,
		logger:  cfg.Logger,
		pending: map[string]state{},
		sent:    make(chan struct{}),
		wake:    make(chan struct{}, 1),

		tails:      map[string]*tailOf{},
		eventsSent: make(chan struct{}),
		eventsWake: make(chan struct{}, 1),
	}
	close(w.sent)
	close(w.eventsSent)
	// A redirect would be shown the key.
	w.client = &http.Client{
		Timeout:       postTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if len(cfg.Keys) > 0 {
		w.key = cfg.Keys[0]
	}
	return w
}

// Enabled reports whether anything is sent.
func (w *Sender) Enabled() bool { return len(w.bases) > 0 }

// Tell sends a conversation's present state soon: body, whose last change was at updated.
func (w *Sender) Tell(id string, updated time.Time, body any) {
	w.mu.Lock()
	if len(w.pending) == 0 {
		w.sent = make(chan struct{})
	}
	w.pending[id] = state{updated, body}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns a conversation to send, "" for none.
func (w *Sender) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.pending {
		return id
	}
	return ""
}

// Run sends until ctx ends.
func (w *Sender) Run(ctx context.Context) {
	if len(w.bases) == 0 {
		return
	}
	for {
		for id := w.take(); id != "" && ctx.Err() == nil; id = w.take() {
			w.deliver(ctx, id)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
	}
}

// deliver sends one conversation's state until a base accepts it, refuses it or retryFor is over.
func (w *Sender) deliver(ctx context.Context, id string) {
	var last state
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		w.mu.Lock()
		last = w.pending[id]
		w.mu.Unlock()
		return struct{}{}, w.send(ctx, last)
	}, backoff.WithMaxElapsedTime(retryFor))
	if err != nil && ctx.Err() == nil {
		w.logger.Warn("a webhook was not accepted", "conversation", id, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending[id].updated.Equal(last.updated) {
		delete(w.pending, id)
		if len(w.pending) == 0 {
			close(w.sent)
		}
	}
}

// Flush waits until all is sent, for a limited time.
func (w *Sender) Flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	w.mu.Lock()
	all := []chan struct{}{w.sent, w.eventsSent}
	w.mu.Unlock()
	for _, sent := range all {
		select {
		case <-sent:
		case <-ctx.Done():
		}
	}
}

// send posts the state to the bases in turn. A refusal that repeating can't change is permanent.
func (w *Sender) send(ctx context.Context, state state) error {
	body, err := json.Marshal(state.body)
	if err != nil {
		return backoff.Permanent(err)
	}
	var all []error
	for _, base := range w.bases {
		status, _, err := w.post(ctx, base, "/conversations", body, "", "")
		switch {
		case err == nil && status/100 == 2:
			return nil
		case err == nil:
			err = fmt.Errorf("%s answered %d", base, status)
		}
		if status == http.StatusBadRequest || status == http.StatusUnprocessableEntity {
			return backoff.Permanent(err)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}

// post makes one call, with a header unless its name is "".
func (w *Sender) post(
	ctx context.Context, base, path string, body []byte, name, value string,
) (status int, header http.Header, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if name != "" {
		r.Header.Set(name, value)
	}
	r.Header.Set("Content-Type", "application/json")
	if w.key != "" {
		r.Header.Set(agent.KeyHeader, w.key)
	}
	a, err := w.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(a.Body, 1<<16))
	return a.StatusCode, a.Header, err
}
