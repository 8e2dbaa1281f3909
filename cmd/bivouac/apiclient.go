package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultAddress is where the operator's commands look for a node: the first
// one of `bivouac dev`.
const defaultAddress = "http://127.0.0.1:8440"

// maxAnswer bounds what an operator's command reads of an answer, in bytes.
const maxAnswer = 16 << 20

// apiFlags are the flags every command has that talks to a node's HTTP API.
type apiFlags struct {
	address, keyFile, caFile string
	asJSON                   bool
}

func (f *apiFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.address, "address", "", "a node's URL (default $BIVOUAC_ADDR, or "+defaultAddress+")")
	cmd.Flags().StringVar(&f.keyFile, "api-key-file", "", "file that holds an operator's API key (default: the key itself in $BIVOUAC_API_KEY)")
	cmd.Flags().StringVar(&f.caFile, "ca-file", "", "CA certificate to trust for https (default: the system's)")
}

func (f *apiFlags) registerJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
}

// apiClient calls the operator routes of one node.
type apiClient struct {
	address, key string
	http         *http.Client
}

// client makes the client the flags and the environment describe. The key is
// never an argument: arguments can be read by every user of the machine.
func (p *program) client(f *apiFlags) (*apiClient, error) {
	c := &apiClient{address: f.address}
	if c.address == "" {
		c.address = p.getenv("BIVOUAC_ADDR")
	}
	if c.address == "" {
		c.address = defaultAddress
	}
	if err := isHTTPAddress(c.address); err != nil {
		return nil, usagef("--address: %w", err)
	}
	c.address = strings.TrimRight(c.address, "/")
	if f.keyFile != "" {
		b, err := os.ReadFile(f.keyFile)
		if err != nil {
			return nil, usagef("--api-key-file: %s", oneLine(err))
		}
		c.key = strings.TrimSpace(string(b))
	} else {
		c.key = strings.TrimSpace(p.getenv("BIVOUAC_API_KEY"))
	}
	if c.key == "" {
		return nil, usagef("an operator's API key is needed: set BIVOUAC_API_KEY or give --api-key-file")
	}
	transport, err := clientTransport(f.caFile)
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{Transport: transport, Timeout: time.Minute}
	return c, nil
}

func clientTransport(caFile string) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, usagef("--ca-file: %s", oneLine(err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("--ca-file: %s holds no certificate", caFile)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}

// call sends in (nil for no body) and reads the answer into out (nil to
// ignore it). An answer other than 2xx is an *apiError.
func (c *apiClient) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.address+path, body)
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("X-Session-API-Key", c.key)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("asking %s: %w", c.address, unwrapURLError(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.address, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return newAPIError(c.address, resp.StatusCode, answer)
	}
	if out == nil || len(answer) == 0 {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("the answer of %s is not what was expected: %w", c.address, err)
	}
	return nil
}

// unwrapURLError drops the method and URL that net/http puts in front.
func unwrapURLError(err error) error {
	var u interface{ Unwrap() error }
	if errors.As(err, &u) && u.Unwrap() != nil {
		return u.Unwrap()
	}
	return err
}

// apiError is a refusal by a node.
type apiError struct {
	address string
	status  int
	text    string
}

// Error implements error.
func (e *apiError) Error() string {
	switch e.status {
	case http.StatusUnauthorized:
		return e.address + " does not know this API key"
	case http.StatusForbidden:
		return "this API key is not an operator's"
	}
	return fmt.Sprintf("%s answered %d: %s", e.address, e.status, e.text)
}

// newAPIError takes the text out of the error bodies of api-contract.md A.0.3.
func newAPIError(address string, status int, body []byte) *apiError {
	e := &apiError{address: address, status: status, text: http.StatusText(status)}
	var shape struct {
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &shape) != nil || shape.Detail == nil {
		return e
	}
	var text string
	var list []struct {
		Loc []string `json:"loc"`
		Msg string   `json:"msg"`
	}
	switch {
	case json.Unmarshal(shape.Detail, &text) == nil:
		e.text = text
	case json.Unmarshal(shape.Detail, &list) == nil:
		lines := make([]string, len(list))
		for i, d := range list {
			lines[i] = strings.Join(d.Loc, ".") + ": " + d.Msg
		}
		e.text = strings.Join(lines, "; ")
	}
	return e
}
