package agentserver

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

	"bivouac.dev/bivouac/scheduler/agent"
)

// Limits of the webhooks.
const (
	webhookTime = 10 * time.Second
	// webhookFor is how long one state is sent again before it is dropped.
	webhookFor = 10 * time.Minute
	// webhookFlush is how long a pause waits for what is not sent.
	webhookFlush = 2 * time.Second
)

// webhooks send conversations to the control plane (PROTOCOL.md, "Webhooks"). One goroutine, run,
// sends; of a conversation only the latest state is sent.
type webhooks struct {
	// bases are tried in turn. Without any nothing is sent.
	bases  []string
	key    string
	client *http.Client
	logger *slog.Logger

	mu      sync.Mutex
	pending map[string]info // by conversation id
	// sent is closed when nothing is pending.
	sent chan struct{}
	wake chan struct{}
}

func newWebhooks(cfg Config) *webhooks {
	w := &webhooks{
		bases:   cfg.Webhooks,
		logger:  cfg.Logger,
		pending: map[string]info{},
		sent:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
	}
	close(w.sent)
	// A redirect would be shown the key.
	w.client = &http.Client{
		Timeout:       webhookTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if len(cfg.Keys) > 0 {
		w.key = cfg.Keys[0]
	}
	return w
}

// tell sends the conversation's present state soon.
func (w *webhooks) tell(c *conversation) {
	if len(w.bases) == 0 {
		return
	}
	i, err := c.info()
	if err != nil {
		return // it is gone
	}
	w.mu.Lock()
	if len(w.pending) == 0 {
		w.sent = make(chan struct{})
	}
	w.pending[c.id] = i
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns a conversation to send, "" for none.
func (w *webhooks) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.pending {
		return id
	}
	return ""
}

// run sends until ctx ends.
func (w *webhooks) run(ctx context.Context) {
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

// deliver sends one conversation's state until a base accepts it, refuses it or webhookFor is over.
func (w *webhooks) deliver(ctx context.Context, id string) {
	var last info
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		w.mu.Lock()
		last = w.pending[id]
		w.mu.Unlock()
		return struct{}{}, w.send(ctx, last)
	}, backoff.WithMaxElapsedTime(webhookFor))
	if err != nil && ctx.Err() == nil {
		w.logger.Warn("a webhook was not accepted", "conversation", id, "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending[id].UpdatedAt.Equal(last.UpdatedAt) {
		delete(w.pending, id)
		if len(w.pending) == 0 {
			close(w.sent)
		}
	}
}

// flush waits until all is sent, for a limited time.
func (w *webhooks) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, webhookFlush)
	defer cancel()
	w.mu.Lock()
	sent := w.sent
	w.mu.Unlock()
	select {
	case <-sent:
	case <-ctx.Done():
	}
}

// send posts the state to the bases in turn. A refusal that repeating can't change is permanent.
func (w *webhooks) send(ctx context.Context, i info) error {
	body, err := json.Marshal(i)
	if err != nil {
		return backoff.Permanent(err)
	}
	var all []error
	for _, base := range w.bases {
		status, err := w.post(ctx, base, body)
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

func (w *webhooks) post(ctx context.Context, base string, body []byte) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(base, "/")+"/conversations",
		bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	if w.key != "" {
		r.Header.Set(agent.KeyHeader, w.key)
	}
	a, err := w.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(a.Body, 1<<16))
	return a.StatusCode, err
}
