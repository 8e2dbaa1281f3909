package bench

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/coder/websocket"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

const (
	// sockets is how many are open at once.
	sockets = 1000
	// downloadMiB is the size of the file that is downloaded.
	downloadMiB = 64
)

// TestProxy measures requests to a sandbox's agent server through a follower, beside a bare
// httputil.ReverseProxy and the server asked directly, in turns.
func TestProxy(t *testing.T) {
	wanted(t)
	rounds := 5
	f := testcluster.Start(t, testcluster.Options{LogLevel: "info"})
	node := f.Followers(t)[0]
	sandbox := node.AwaitSandbox(t, node.NewSandbox(t, "raw").ID, "RUNNING")
	inside := testcluster.Client{Base: node.Base + "/sandboxes/" + sandbox.ID + "/AGENT_SERVER", Key: sandbox.Inside().Key}
	server := agentServer(t, f)
	large := filepath.Join(f.Dir, "large")
	inside.Sure(t, http.MethodPost, "/api/bash/execute_bash_command", map[string]any{
		"command": fmt.Sprintf("head -c %dM /dev/zero > %s", downloadMiB, large)}, nil)
	t.Cleanup(func() { _ = os.Remove(large) })
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	bare := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 64},
	})
	defer bare.Close()
	ways := []struct{ name, base string }{{"Bivouac", inside.Base}, {"bare proxy", bare.URL}, {"directly", server}}

	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tBivouac\tbare httputil.ReverseProxy\tdirectly\t÷ bare\t÷ directly")
	row := func(what string, value func(base string) float64) {
		sums := make([]float64, len(ways))
		for range rounds {
			for i, way := range ways {
				sums[i] += value(way.base) / float64(rounds)
			}
		}
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", what, sums[0], sums[1], sums[2],
			sums[0]/sums[1], sums[0]/sums[2])
	}
	row("GET /server_info, 1 client, median in ms", func(base string) float64 {
		return ms(together(t, 200, 1, request(base+"/server_info", inside.Key, nil)).at(.5))
	})
	row("GET /server_info, 16 clients, a second", func(base string) float64 {
		second, _ := rate(t, 3200, 16, request(base+"/server_info", inside.Key, nil))
		return second
	})
	row(fmt.Sprintf("a download of %d MiB, MiB a second", downloadMiB), func(base string) float64 {
		second, _ := rate(t, 2, 1, request(base+"/api/file/download?path="+large, inside.Key, nil))
		return second * downloadMiB
	})
	w.Flush()
	t.Logf("\n%s", text.String())
	before := memory(t, node.Pid())
	insides := []testcluster.Client{inside}
	for range 2 { // an agent server takes 512 connections of one address
		s := node.AwaitSandbox(t, node.NewSandbox(t, "raw").ID, "RUNNING")
		insides = append(insides, testcluster.Client{
			Base: node.Base + "/sandboxes/" + s.ID + "/AGENT_SERVER", Key: s.Inside().Key})
	}
	open := openSockets(t, insides)
	t.Logf("%d sockets open through a follower in %s: %d MiB before, %d MiB with them", sockets,
		open.Round(time.Millisecond), before, memory(t, node.Pid()))
}

// agentServer is the address of the agent server of the only job.
func agentServer(t *testing.T, f *testcluster.Cluster) string {
	t.Helper()
	jobs, err := f.Jobs()
	if err != nil || len(jobs) != 1 {
		t.Fatal(err, jobs)
	}
	_, host, port := (&alone{f: f}).placed(t, jobs[0].ID, "")
	return fmt.Sprintf("http://%s:%d", host, port)
}

// openSockets opens sockets to the sandboxes in turn, from four addresses, and returns how long that
// took. They close with the test.
func openSockets(t *testing.T, sandboxes []testcluster.Client) time.Duration {
	t.Helper()
	begin := time.Now()
	var clients []*http.Client
	for i := range 4 {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i))}}
		clients = append(clients, &http.Client{Transport: &http.Transport{DialContext: from.DialContext}})
	}
	var all sync.WaitGroup
	limit := make(chan struct{}, 32)
	for i := range sockets {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			to := sandboxes[i%len(sandboxes)]
			conn, _, err := websocket.Dial(ctx, strings.Replace(to.Base, "http", "ws", 1)+"/sockets/bash-events",
				&websocket.DialOptions{
					HTTPHeader: http.Header{"X-Session-Api-Key": {to.Key}}, HTTPClient: clients[i%len(clients)],
				})
			if err != nil {
				t.Errorf("socket %d: %v", i, err)
				return
			}
			t.Cleanup(func() { _ = conn.CloseNow() })
		})
	}
	all.Wait()
	return time.Since(begin)
}
