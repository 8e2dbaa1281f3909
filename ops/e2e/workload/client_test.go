package workload

import (
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/lincheck"
)

func TestOutcome_BelievesTheAnswer(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   lincheck.Outcome
	}{
		{200, "", lincheck.Done}, {404, "", lincheck.Done}, {500, "", lincheck.Unknown}, {429, "", lincheck.Nothing},
		{503, `{"detail":"The cluster has no leader right now; nothing was done. Try again."}`, lincheck.Nothing},
		{503, `{"detail":"The outcome of this request is unknown: it may have been done"}`, lincheck.Unknown},
	} {
		if got := outcomeOf(c.status, []byte(c.body), true, nil); got != c.want {
			t.Errorf("%d %s: %s, want %s", c.status, c.body, got, c.want)
		}
	}
	if got := outcomeOf(0, nil, true, os.ErrDeadlineExceeded); got != lincheck.Unknown {
		t.Errorf("a request without an answer: %s", got)
	}
	if got := outcomeOf(0, nil, false, os.ErrDeadlineExceeded); got != lincheck.Nothing {
		t.Errorf("a request that never left: %s", got)
	}
}

// TestSend_KnowsOfTheTransportsOwnRetry: when a connection breaks during a request with an
// Idempotency-Key, the transport dials again. If that is refused, the outcome of the first
// attempt is still unknown.
func TestSend_KnowsOfTheTransportsOwnRetry(t *testing.T) {
	served := make(chan struct{}, 10)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	handled := 0
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handled++; handled == 1 {
			served <- struct{}{}
			return
		}
		_ = listener.Close() // the node dies during the request
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	w := NewRecorded([]Endpoint{
		{Name: "n1", Base: "http://" + listener.Addr().String(), Life: func() uint64 { return 0 }},
	}, "", 1)
	c := w.client()
	if r := c.do(t.Context(), 0, 10*time.Second, "", http.MethodPost, "/", nil); !r.ok() {
		t.Fatal(r.Error)
	}
	<-served
	r := c.do(t.Context(), 0, 10*time.Second, "", http.MethodPost, "/", map[string]string{}, "Idempotency-Key", "k")
	if r.Outcome != lincheck.Unknown {
		t.Errorf("%s: %s", r.Outcome, r.Error)
	}
}
