package client

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAddresses_NextNode: reads, and writes that are sent once, go to the next node; a write that may
// have been carried out does not.
func TestAddresses_NextNode(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	take := func() string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { asked = nil }()
		return strings.Join(asked, "|")
	}
	node := func(name string, status int) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			asked = append(asked, name+" "+r.Method+" "+string(body))
			mu.Unlock()
			if status == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
		}))
		t.Cleanup(s.Close)
		return s
	}
	gone := node("gone", http.StatusOK)
	gone.Close()
	breaks, busy, good := node("breaks", 0), node("busy", http.StatusServiceUnavailable), node("good", http.StatusOK)
	once := []string{"Idempotency-Key", "k"}
	for _, c := range []struct {
		name   string
		nodes  []*httptest.Server
		method string
		in     any
		header []string
		want   string // what was asked
		status int    // 0: an error
	}{
		{"unreachable", []*httptest.Server{gone, good}, "POST", 1, nil, "good POST 1", 200},
		{"a read that breaks", []*httptest.Server{breaks, good}, "GET", nil, nil, "breaks GET |good GET ", 200},
		{"a write that breaks", []*httptest.Server{breaks, good}, "POST", 1, nil, "breaks POST 1", 0},
		{"once", []*httptest.Server{breaks, good}, "POST", 1, once, "breaks POST 1|good POST 1", 200},
		{"busy", []*httptest.Server{busy, good}, "GET", nil, nil, "busy GET |good GET ", 200},
		{"a write to a busy one", []*httptest.Server{busy, good}, "POST", 1, nil, "busy POST 1", 503},
		{"read once", []*httptest.Server{gone, good}, "POST", io.MultiReader(strings.NewReader("1")), nil, "", 0},
		{"all busy", []*httptest.Server{busy, busy}, "GET", nil, nil, "busy GET |busy GET ", 503},
	} {
		var urls []string
		for _, n := range c.nodes {
			urls = append(urls, n.URL)
		}
		transport, err := NewAddresses(urls, &http.Transport{DisableKeepAlives: true}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		one := Client{Address: urls[0], Key: "k", HTTP: &http.Client{Transport: transport}}
		got, err := one.Send(t.Context(), c.method, "/x", c.in, c.header...)
		if asked := take(); (err == nil) != (c.status != 0) || got.Status != c.status || asked != c.want {
			t.Errorf("%s: %d, %v, asked %q", c.name, got.Status, err, asked)
		}
		if c.status != http.StatusOK {
			continue
		}
		_, err = one.Send(t.Context(), "POST", "/x", 2)
		if asked := take(); err != nil || asked != "good POST 2" {
			t.Errorf("%s: then %v, asked %q: it does not stay with the node that answered", c.name, err, asked)
		}
	}
}

// TestAddresses_NodeThatHangs: a node that accepts connections and answers nothing is given up, by a
// read at once, after a write by what follows it. What a good one answers outlives the patience.
func TestAddresses_NodeThatHangs(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	const patience = 100 * time.Millisecond
	good := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "be")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(2 * patience):
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "gun")
	}))
	defer good.Close()
	node := func(timeout time.Duration) *Client {
		urls := []string{"http://" + hangs.Addr().String(), good.URL}
		transport, err := NewAddresses(urls, &http.Transport{DisableKeepAlives: true}, patience)
		if err != nil {
			t.Fatal(err)
		}
		return &Client{Address: urls[0], Key: "k", HTTP: &http.Client{Transport: transport, Timeout: timeout}}
	}
	for range 3 {
		if got, err := node(10*time.Second).Send(t.Context(), http.MethodGet, "/x", nil); string(got.Body) != "begun" {
			t.Errorf("a read: %q, %v", got.Body, err)
		}
	}
	c := node(time.Second)
	if _, err := c.Send(t.Context(), http.MethodPost, "/x", 1); err == nil {
		t.Error("a write went to another node")
	}
	if got, err := c.Send(t.Context(), http.MethodPost, "/x", 1); string(got.Body) != "begun" {
		t.Errorf("the next write: %q, %v", got.Body, err)
	}
}
