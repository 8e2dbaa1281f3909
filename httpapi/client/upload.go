package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Upload posts a file of size bytes and decodes the response into out.
func (c *Client) Upload(ctx context.Context, path string, body io.Reader, size int64, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Address+path, io.NopCloser(body))
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", "application/x-tar")
	return c.post(req, out)
}

// UploadForm posts a form. It fails if the node takes nothing for five minutes, or leaves the whole
// without an answer for as long.
func (c *Client) UploadForm(ctx context.Context, path, contentType string, form []byte) error {
	return c.uploadForm(ctx, path, contentType, form, downloadStall)
}

func (c *Client) uploadForm(ctx context.Context, path, contentType string, form []byte, pause time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(pause, func() { cancel(fmt.Errorf("%s took nothing for %s", c.Address, pause)) })
	defer stall.Stop()
	body := func() io.ReadCloser { return io.NopCloser(&uploaded{bytes.NewReader(form), stall, pause}) }
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Address+path, body())
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	req.ContentLength = int64(len(form))
	req.GetBody = func() (io.ReadCloser, error) { return body(), nil } // for another node
	req.Header.Set("Content-Type", contentType)
	if err = c.post(req, nil); err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// uploaded is a request body whose reads put a stall off.
type uploaded struct {
	io.Reader
	stall *time.Timer
	pause time.Duration
}

// Read implements io.Reader.
func (u *uploaded) Read(b []byte) (int, error) {
	u.stall.Reset(u.pause)
	return u.Reader.Read(b)
}

// post sends a request of any duration and decodes the response into out (nil to ignore it).
func (c *Client) post(req *http.Request, out any) error {
	req.Header.Set("X-Session-API-Key", c.Key)
	untimed := *c.HTTP
	untimed.Timeout = 0
	resp, err := untimed.Do(req)
	if err != nil {
		return fmt.Errorf("asking %s: %w", c.Address, unwrapURLError(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("reading the answer of %s: %w", c.Address, err)
	case resp.StatusCode != http.StatusOK:
		return newError(c.Address, resp.StatusCode, answer)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("the answer of %s is %w: %w", c.Address, ErrUnexpected, err)
	}
	return nil
}
