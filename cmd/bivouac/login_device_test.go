package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

// answers is a node that answers with one text after another: a status and a body, or "" for none.
type answers []string

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	next := (*a)[0]
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	status, body, is := strings.Cut(next, " ")
	if !is {
		return nil, errors.New("the connection was lost")
	}
	code := map[string]int{"200": 200, "400": 400, "404": 404, "429": 429, "503": 503}[status]
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// TestLogin_OutlivesLostAnswers: a node that fails, refuses for now or answers nothing ends no login.
func TestLogin_OutlivesLostAnswers(t *testing.T) {
	t.Parallel()
	const pending, slow = `400 {"error":"authorization_pending"}`, `400 {"error":"slow_down"}`
	for _, test := range []struct {
		name, key, fails string
		answers          answers
	}{
		{"all that passes", "k", "", answers{pending, `503 {"detail":"no leader"}`, "", slow, `429 {"detail":"x"}`, `200 {`,
			`200 {"access_token":"k"}`}},
		{"refused", "", "may not log in", answers{"", `400 {"error":"access_denied"}`}},
		{"expired", "", "in time", answers{"", `400 {"error":"expired_token"}`}},
		{"not a node", "", "404", answers{`404 {"detail":"Not Found"}`}},
		{"never", "", context.DeadlineExceeded.Error(), answers{""}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c := &client.Client{Address: "http://node", HTTP: &http.Client{Transport: &test.answers}}
			key, err := awaitDevice(ctx, c, wire.DeviceCodes{DeviceCode: "d", Interval: 2})
			failed := err != nil && test.fails != "" && strings.Contains(err.Error(), test.fails)
			if key != test.key || failed != (test.fails != "") || !failed && err != nil {
				t.Errorf("%s: %q, %v", test.name, key, err)
			}
		})
	}
}
