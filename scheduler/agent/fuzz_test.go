package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"
	"unicode/utf8"
)

// anyAnswer is a broken or hostile agent server: it gives every request the same response.
type anyAnswer struct {
	status   int
	kind     string
	body     []byte
	location string
	// elsewhere is the other host that a call went to, "" for none.
	elsewhere string
}

// RoundTrip implements http.RoundTripper.
func (a *anyAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != "10.0.0.1:1" {
		a.elsewhere = r.URL.Host
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	h := http.Header{"Content-Type": {a.kind}}
	if a.location != "" {
		h.Set("Location", a.location)
	}
	return &http.Response{
		StatusCode: a.status,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Request:    r,
		Header:     h,
		Body:       io.NopCloser(bytes.NewReader(a.body)),
	}, nil
}

// FuzzAnswers gives each call of the client an arbitrary response. The call must end in time, with
// a result or an *Error whose text can be stored, and must not go to another host.
func FuzzAnswers(f *testing.F) {
	for _, body := range []string{``, `{}`, `[]`, `null`, `[null]`, `0`, `1e400`, `{"uptime":1e300,"idle_time":-1}`,
		`{"id":"x"}`, `{"state":"ready","error":null}`,
		`{"items":[{"order":0,"exit_code":0,"stdout":"\ud800"}],"next_page_id":"1"}`,
		`{"items":[{"id":"x","execution_status":"running"}],"next_page_id":"x"}`,
		`{"detail":[{"loc":[1],"msg":"m"}]}`, `{"detail":{"message":"x"}}`, `{"detail":"File not found"}`, "\xff\xfe"} {
		for _, status := range []uint16{200, 201, 204, 302, 401, 404, 409, 422, 500, 999} {
			f.Add(status, "application/json", []byte(body), "http://169.254.169.254/")
		}
	}
	f.Fuzz(func(t *testing.T, status uint16, kind string, body []byte, location string) {
		answers := &anyAnswer{status: 100 + int(status)%900, kind: kind, body: body, location: location}
		c := New(Config{Transport: answers, MaxBody: 4 << 10, PauseTimeout: time.Millisecond})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		const base, key, id = "http://10.0.0.1:1", "k", "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"
		var errs []error
		collect := func(err error) { errs = append(errs, err) }
		collect(c.Health(ctx, base))
		info, err := c.ServerInfo(ctx, base)
		if collect(err); err == nil && (info.Idle < 0 || info.Uptime < 0) {
			t.Fatalf("%q was idle for %v", body, info.Idle)
		}
		_, err = c.Prove(ctx, base, key, false)
		collect(err)
		created, _, err := c.CreateConversation(ctx, base, key, CreateRequest{ConversationID: DashedID(id)})
		collect(err)
		_ = DashedID(created.HexID())
		list, err := c.Conversations(ctx, base, key, []string{id, id})
		if collect(err); err == nil && len(list) != 2 {
			t.Fatalf("%d answers to 2 ids", len(list))
		}
		_, err = c.CountEvents(ctx, base, key, id, "")
		collect(err)
		_, err = c.Download(ctx, base, key, "/x")
		collect(err)
		_, err = c.Busy(ctx, base, key)
		collect(err)
		_, err = c.InitState(ctx, base)
		collect(err)
		collect(c.Init(ctx, base, key, InitRequest{}))
		collect(c.SendMessage(ctx, base, key, id, Message{}))
		collect(c.Upload(ctx, base, key, "/x", nil))
		collect(c.PreparePause(ctx, base, key))
		_, err = c.PauseAll(ctx, base, key, false)
		collect(err)
		out, err := c.RunCommand(ctx, base, key, Command{Command: "true"})
		if collect(err); len(out.Stdout) > maxOutput || !utf8.ValidString(out.Stdout) {
			t.Fatalf("output of %d bytes", len(out.Stdout))
		}
		for i, err := range errs {
			var told *Error
			switch {
			case err == nil || errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &told):
			case !errors.As(err, &told):
				t.Fatalf("call %d: %T %v", i, err, err)
			case !utf8.ValidString(told.Error()) || len(told.Error()) > 8<<10:
				t.Fatalf("call %d: an error of %d bytes that can't be stored: %q", i, len(told.Error()), told.Error())
			}
		}
		if answers.elsewhere != "" {
			t.Fatalf("a call went to %s", answers.elsewhere)
		}
	})
}
