package peernet

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The messages of short calls travel without bodies once the peer has shown that
// it reads messageHeader; a peer of an older program, which knows bodies only, is
// understood before, between and after.
func TestPeerCalls_ShortMessagesNeedNoBody(t *testing.T) {
	ca := authorityFor(t)
	o := Options{Address: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}
	port, err := Open(o, creds(t, write(t, t.TempDir(), ca, issue(t, ca, "a", time.Now(), time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	var old atomic.Bool
	var bodies, running = atomic.Int64{}, Gate{}
	current := callHandler(func(_ context.Context, from, name string, request []byte) ([]byte, error) {
		if len(request) == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		return echo(t.Context(), from, name, request)
	}, new(peerCertificates), &running)
	server := &http.Server{Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > 0 {
				bodies.Add(1)
			}
			if old.Load() {
				r.Header.Del(messageHeader)
			}
			current.ServeHTTP(w, r)
		}), ReadHeaderTimeout: time.Minute}
	server.Protocols.SetHTTP2(true)
	port.start()
	served := make(chan error, 1)
	go func() { served <- server.Serve(port.calls) }()
	c := NewClient(creds(t, write(t, t.TempDir(), ca, issue(t, ca, "b", time.Now(), time.Hour))))
	t.Cleanup(func() {
		c.Close()
		_ = server.Close()
		<-served
		if err := port.Close(); err != nil {
			t.Error(err)
		}
	})

	long := strings.Repeat("x", maxHeaderMessage+1)
	for i, step := range []struct {
		old           bool
		name, request string
		body, fails   bool
	}{
		{true, CallTerm, "{}", true, false},
		{true, CallTerm, "{}", true, false},
		{false, CallTerm, "{}", true, false},
		{false, CallTerm, "{}", false, false},
		{false, CallIndex, `{"voter":{"id":"ä\u003c"}}`, false, false},
		{false, CallIndex, long, true, false},
		{false, "apply", "{}", true, false},
		{true, CallTerm, "{}", false, true},
		{true, CallTerm, "{}", true, false},
		{false, CallIndex, "{}", true, false},
		{false, CallTerm, "{}", false, false},
	} {
		old.Store(step.old)
		before := bodies.Load()
		answer, err := c.Call(t.Context(), port.Addr(), step.name, []byte(step.request))
		if failed := err != nil; failed != step.fails || !failed && string(answer) != "b "+step.name+" "+step.request {
			t.Errorf("step %d: %.50q, %v", i, answer, err)
		}
		if body := bodies.Load() > before; body != step.body {
			t.Errorf("step %d: a body was sent: %t", i, body)
		}
	}
}
