package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"bivouac.dev/bivouac/httpapi/client"
)

// httpLoad is the client of all HTTP systems: net/http with keep-alive and at most one
// connection per client.
type httpLoad struct{ client *http.Client }

func newHTTPLoad() *httpLoad {
	return &httpLoad{&http.Client{
		Transport: &http.Transport{
			MaxIdleConns: 4096, MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Hour,
			DisableCompression: true, WriteBufferSize: 4 << 10, ReadBufferSize: 4 << 10,
		},
	}}
}

func (h *httpLoad) close() { h.client.CloseIdleConnections() }

// request is built by hand because the same few are sent a million times.
func request(ctx context.Context, method string, to *url.URL, body []byte, header http.Header) *http.Request {
	r := &http.Request{
		Method:     method,
		URL:        to,
		Host:       to.Host,
		Header:     header,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
	}
	if body != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	return r.WithContext(ctx)
}

// headers makes a request's headers from pairs.
func headers(pairs ...string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// send sends one request of a load and discards the body. A status that is not a success is an
// error.
func (h *httpLoad) send(r *http.Request) error {
	resp, err := h.client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// refused is a response that is not a success.
type refused struct {
	status int
	text   string
}

// Error implements error.
func (e *refused) Error() string { return fmt.Sprintf("status %d: %.300s", e.status, e.text) }

// fetch returns a response's body. It is for the setup, not for the load.
func (h *httpLoad) fetch(ctx context.Context, method, to string, in []byte, pairs ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var body any
	if in != nil {
		body = bytes.NewReader(in)
	}
	c := client.Client{HTTP: h.client}
	resp, err := c.Send(ctx, method, to, body, pairs...)
	if err == nil && !resp.OK() {
		err = &refused{resp.Status, string(resp.Body)}
	}
	return resp.Body, err
}

// call is fetch with the response decoded; out may be nil.
func (h *httpLoad) call(ctx context.Context, method, to string, in []byte, out any, pairs ...string) error {
	raw, err := h.fetch(ctx, method, to, in, pairs...)
	if err == nil && out != nil {
		err = json.Unmarshal(raw, out)
	}
	return err
}
