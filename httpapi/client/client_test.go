package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestClient_Send_ReturnsEveryStatus: a refusal is a response with its status and headers, and an
// error only when it is decoded.
func TestClient_Send_ReturnsEveryStatus(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w,
			strings.Join([]string{
				r.Method,
				r.Header.Get("X-Session-API-Key"),
				r.Header.Get("Content-Type"),
				r.Header.Get("Idempotency-Key"),
				string(body),
			}, "|"))
	}))
	t.Cleanup(server.Close)
	for _, c := range []struct {
		key    string
		in     any
		header []string
		want   string
	}{
		{"k", map[string]int{"a": 1}, []string{"Idempotency-Key", "once"}, `POST|k|application/json|once|{"a":1}`},
		{"", nil, nil, `POST||||`},
		{"k", strings.NewReader("raw"), []string{"Content-Type", "text/plain"}, `POST|k|text/plain||raw`},
	} {
		client := Client{Address: server.URL, Key: c.key, HTTP: server.Client()}
		got, err := client.Send(t.Context(), http.MethodPost, "/x", c.in, c.header...)
		if err != nil || got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "7" ||
			string(got.Body) != c.want {
			t.Errorf("%v: %v, %v", c.in, got, err)
		}
		if err := got.Decode(nil); err == nil || err.Error() != "429 "+c.want {
			t.Errorf("decoded: %v", err)
		}
	}
}

// TestClient_UploadForm: an upload may take longer than a call; one that stands still fails.
func TestClient_UploadForm(t *testing.T) {
	const pause = 300 * time.Millisecond
	var answers atomic.Bool
	stop := make(chan struct{})
	node := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if !answers.Load() {
			<-stop
			return
		}
		<-time.After(pause / 2) // the call's time-out is over
	}))
	defer node.Close()
	defer close(stop)
	c := &Client{Address: node.URL, HTTP: &http.Client{Timeout: pause / 10}}
	if err := c.uploadForm(t.Context(), "/x", "text/plain", []byte("form"), pause); err == nil ||
		!strings.Contains(err.Error(), "took nothing for") {
		t.Errorf("one that stands still: %v", err)
	}
	answers.Store(true)
	if err := c.uploadForm(t.Context(), "/x", "text/plain", []byte("form"), time.Minute); err != nil {
		t.Errorf("one that takes longer than a call: %v", err)
	}
}
