package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer limits how much of a JSON response is read, in bytes.
const maxAnswer = 16 << 20

// ErrUnexpected is an answer that is not what the call expects. Asking again does not help.
var ErrUnexpected = errors.New("not what was expected")

// Client calls the API of one node. All fields are required.
type Client struct {
	// Address is the node's URL without a trailing slash, Key an API key.
	Address, Key string
	// HTTP sends the requests. Its Timeout applies to Send and Call, not to Download and Upload.
	HTTP *http.Client
}

// Response is a node's response of any status.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
	// From is the address of the node that answered.
	From string
}

// OK reports whether the request succeeded.
func (r Response) OK() bool { return r.Status/100 == 2 }

// String formats the response for a message.
func (r Response) String() string { return fmt.Sprintf("%d %s", r.Status, r.Body) }

// Decode decodes the body of a success (nil to ignore it). Any other response is an error with
// its text.
func (r Response) Decode(out any) error {
	switch {
	case !r.OK():
		return errors.New(r.String())
	case out == nil:
		return nil
	}
	return json.Unmarshal(r.Body, out)
}

// Send sends in and returns the response, whatever its status. It is for callers that need the
// status or a header. in is nil for no body, an io.Reader, or a value that is sent as JSON. header
// has pairs of names and values.
func (c *Client) Send(ctx context.Context, method, path string, in any, header ...string) (Response, error) {
	body, is := in.(io.Reader)
	if in != nil && !is {
		b, err := json.Marshal(in)
		if err != nil {
			return Response{}, fmt.Errorf("encoding the request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Address+path, body)
	if err != nil {
		return Response{}, fmt.Errorf("making the request: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Key != "" {
		req.Header.Set("X-Session-API-Key", c.Key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return Response{}, fmt.Errorf("asking %s: %w", c.Address, unwrapURLError(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return Response{}, fmt.Errorf("reading the answer of %s: %w", c.Address, err)
	}
	from := url.URL{Scheme: resp.Request.URL.Scheme, Host: resp.Request.URL.Host} // Addresses chose it
	return Response{Status: resp.StatusCode, Header: resp.Header, Body: answer, From: from.String()}, nil
}

// Call sends in (nil for no body) and decodes the response into out (nil to ignore it). A response
// other than 2xx is an *Error.
func (c *Client) Call(ctx context.Context, method, path string, in, out any, header ...string) error {
	_, err := c.CallFrom(ctx, method, path, in, out, header...)
	return err
}

// CallFrom is Call, and returns the address of the node that answered.
func (c *Client) CallFrom(
	ctx context.Context, method, path string, in, out any, header ...string,
) (address string, err error) {
	resp, err := c.Send(ctx, method, path, in, header...)
	if err != nil {
		return "", err
	}
	if !resp.OK() {
		e := newError(c.Address, resp.Status, resp.Body)
		if e.Text == http.StatusText(http.StatusNotFound) {
			e.Text = "there is no " + strings.TrimPrefix(path, "/api/v1/") // for example operator/keys/7
		}
		return resp.From, e
	}
	if out == nil || len(resp.Body) == 0 {
		return resp.From, nil
	}
	if err := json.Unmarshal(resp.Body, out); err != nil {
		return resp.From, fmt.Errorf("the answer of %s is %w: %w", c.Address, ErrUnexpected, err)
	}
	return resp.From, nil
}

// unwrapURLError removes the method and URL that net/http prepends.
func unwrapURLError(err error) error {
	var u interface{ Unwrap() error }
	if errors.As(err, &u) && u.Unwrap() != nil {
		return u.Unwrap()
	}
	return err
}

// Error is an error response of a node.
type Error struct {
	Address string
	Status  int
	// Text is the response's text.
	Text string
}

// Error implements error.
func (e *Error) Error() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return e.Address + " does not know this API key"
	case http.StatusForbidden:
		return "this API key is not an operator's"
	}
	return fmt.Sprintf("%s answered %d: %s", e.Address, e.Status, e.Text)
}

// newError extracts the text from the error bodies of API.md, "Errors".
func newError(address string, status int, body []byte) *Error {
	e := &Error{Address: address, Status: status, Text: http.StatusText(status)}
	var failure struct {
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &failure) != nil || failure.Detail == nil {
		return e
	}
	var text string
	var list []struct {
		Loc []string `json:"loc"`
		Msg string   `json:"msg"`
	}
	switch {
	case json.Unmarshal(failure.Detail, &text) == nil:
		e.Text = text
	case json.Unmarshal(failure.Detail, &list) == nil:
		lines := make([]string, len(list))
		for i, d := range list {
			lines[i] = strings.Join(d.Loc, ".") + ": " + d.Msg
		}
		e.Text = strings.Join(lines, "; ")
	}
	return e
}

// downloadStall is the longest pause in a download.
const downloadStall = 5 * time.Minute

// Download gets a response of any length and duration, which the caller closes. size is -1 if
// unknown. It fails if the node sends nothing for five minutes.
func (c *Client) Download(ctx context.Context, path string) (body io.ReadCloser, size int64, err error) {
	return c.download(ctx, path, downloadStall)
}

// Follow is Download for what may be silent for as long as it likes, such as a log.
func (c *Client) Follow(ctx context.Context, path string) (io.ReadCloser, error) {
	body, _, err := c.download(ctx, path, math.MaxInt64)
	return body, err
}

func (c *Client) download(
	ctx context.Context,
	path string,
	pause time.Duration,
) (body io.ReadCloser, size int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stall := time.AfterFunc(pause, func() { cancel(fmt.Errorf("%s sent nothing for %s", c.Address, pause)) })
	d := &downloaded{cancel: cancel, stall: stall, pause: pause, ctx: ctx}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Address+path, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("X-Session-API-Key", c.Key)
	untimed := *c.HTTP
	untimed.Timeout = 0
	resp, err := untimed.Do(req)
	if err != nil {
		d.stop()
		return nil, 0, fmt.Errorf("asking %s: %w", c.Address, unwrapURLError(err))
	}
	d.ReadCloser = resp.Body
	if resp.StatusCode == http.StatusOK {
		return d, resp.ContentLength, nil
	}
	defer d.Close()
	answer, err := io.ReadAll(io.LimitReader(d, maxAnswer))
	if err != nil {
		return nil, 0, fmt.Errorf("reading the answer of %s: %w", c.Address, err)
	}
	return nil, 0, newError(c.Address, resp.StatusCode, answer)
}

// downloaded is a response body that fails when no data arrives for pause.
type downloaded struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  *time.Timer
	pause  time.Duration
}

// Read implements io.Reader.
func (d *downloaded) Read(b []byte) (int, error) {
	n, err := d.ReadCloser.Read(b)
	if n > 0 {
		d.stall.Reset(d.pause)
	}
	if err != nil && !errors.Is(err, io.EOF) && d.ctx.Err() != nil {
		err = context.Cause(d.ctx)
	}
	return n, err
}

// Close implements io.Closer.
func (d *downloaded) Close() error {
	d.stop()
	return d.ReadCloser.Close()
}

func (d *downloaded) stop() {
	d.stall.Stop()
	d.cancel(context.Canceled)
}
