package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// call is one request to a JSON API.
type call struct {
	method, url string
	header      map[string]string
	in, out     any // nil: no body, or ignored
}

// StatusError is a response other than 2xx.
type StatusError struct {
	Status int
	Method string
	URL    string
	Body   string // the body, at most 4 KiB
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d: %s", e.Method, e.URL, e.Status, strings.TrimSpace(e.Body))
}

func (c call) do(ctx context.Context) error {
	var body io.Reader
	if c.in != nil {
		raw, err := json.Marshal(c.in)
		if err != nil {
			return fmt.Errorf("%s %s: %w", c.method, c.url, err)
		}
		body = bytes.NewReader(raw)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, c.method, c.url, body)
	if err != nil {
		return err
	}
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	// No kept connection: one to a process that was killed must not be used for its successor.
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("%s %s: %w", c.method, c.url, err)
	}
	if resp.StatusCode/100 != 2 {
		return &StatusError{Status: resp.StatusCode, Method: c.method, URL: c.url, Body: string(raw[:min(len(raw), 4096)])}
	}
	if c.out == nil || len(raw) == 0 {
		return nil
	}
	if err := json.Unmarshal(raw, c.out); err != nil {
		return fmt.Errorf("%s %s: reading the answer: %w", c.method, c.url, err)
	}
	return nil
}

// until polls until the condition holds, the process has ended or ctx ends.
func until(ctx context.Context, p *Process, what string, cond func(context.Context) error) error {
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		if p != nil && !p.Alive() {
			return p.failure("ended while waiting for " + what)
		}
		select {
		case <-ctx.Done():
			if p != nil && !errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("%w: %w", ctx.Err(), p.failure(fmt.Sprintf("did not come to %s (%v)", what, err)))
			}
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
}
