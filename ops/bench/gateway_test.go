package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// endpoint is a model's server that answers at once: a chat completion of a kilobyte, or a stream of
// fifty events.
func endpoint(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w,
			`{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop",`+
				`"message":{"role":"assistant","content":%q}}],"usage":{"prompt_tokens":100,"completion_tokens":200}}`,
			strings.Repeat("answer ", 140))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range 50 {
		fmt.Fprint(w,
			`data: {"id":"c","object":"chat.completion.chunk","model":"m",`+
				`"choices":[{"index":0,"delta":{"content":"some words"}}]}`+"\n\n")
		w.(http.Flusher).Flush()
	}
	fmt.Fprint(w,
		`data: {"id":"c","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":200}}`+"\n\ndata: [DONE]\n\n")
}

// modelPath is a way to the endpoint.
type modelPath struct{ url, key string }

// ask sends a request of four kilobytes. It returns the time to the first byte of the answer.
func (p modelPath) ask(client *http.Client, stream bool) (time.Duration, error) {
	body := fmt.Sprintf(
		`{"model":"m","stream":%t,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":%q}]}`,
		stream,
		strings.Repeat("word ", 800),
	)
	if !stream {
		body = strings.Replace(body, `"stream_options":{"include_usage":true},`, "", 1)
	}
	r, err := http.NewRequest(http.MethodPost, p.url+"/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+p.key)
	begin := time.Now()
	res, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
		return 0, err
	}
	first := time.Since(begin)
	rest, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", res.StatusCode, rest)
	}
	return first, err
}

// load sends n requests with so many clients.
func (p modelPath) load(t *testing.T, n, clients int, stream bool) (first durations) {
	t.Helper()
	return together(t, n, clients, func(c *http.Client) (time.Duration, error) { return p.ask(c, stream) })
}

// ownCPU is the CPU time of this process, which is client and endpoint.
func ownCPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuOf is the CPU time of a process (proc(5): utime and stime, in ticks of 10 ms).
func cpuOf(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	for _, text := range fields[11:13] {
		ticks, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(ticks) * 10 * time.Millisecond
	}
	return sum
}

// cpuOfNodes is the CPU time of all nodes: that of a follower's requests is the leader's too.
func cpuOfNodes(t *testing.T, f *testcluster.Cluster) (sum time.Duration) {
	t.Helper()
	for _, n := range f.Nodes {
		sum += cpuOf(t, n.Pid())
	}
	return sum
}

// TestModelGateway measures the model gateway of a follower beside the endpoint asked directly, in
// turns: the time to the first byte, and the CPU time of client, endpoint and all nodes.
func TestModelGateway(t *testing.T) {
	wanted(t)
	rounds, requests := 5, size(t, "BIVOUAC_BENCH_REQUESTS", 2000)
	f := testcluster.Start(t, testcluster.Options{})
	model := httptest.NewServer(http.HandlerFunc(endpoint))
	defer model.Close()
	f.Nodes[0].Sure(t, http.MethodPut, "/api/v1/operator/config", map[string]any{"llm": map[string]any{
		"hosts": []string{"127.0.0.1"}, "prices": []any{
			map[string]any{"model": "*", "input": 1, "output": 10},
		}, "budgets": map[string]any{"per_user_day": 1e6}}}, nil)
	node := f.Followers(t)[0]
	user := testcluster.Client{Base: node.Base, Key: f.Nodes[0].NewKey(t, "ada")}
	user.Sure(t, http.MethodPost, "/api/settings",
		map[string]any{"llm_model": "openai/m", "llm_api_key": "sk-bench", "llm_base_url": model.URL}, nil)
	var task testcluster.StartTask
	user.Sure(t, http.MethodPost, "/api/v1/app-conversations", map[string]any{}, &task)
	task = user.AwaitTask(t, task.ID)
	sandbox := testcluster.Client{Base: node.Base, Key: ""}
	var out struct{ Token string }
	a, err := sandbox.Try(http.MethodPost, "/llm/token", map[string]any{"conversation_id": *task.ConversationID},
		"X-Session-API-Key", user.AwaitSandbox(t, *task.SandboxID, "RUNNING").Inside().Key)
	if err != nil || a.Decode(&out) != nil {
		t.Fatal(err, a)
	}
	direct, gateway := modelPath{model.URL, "sk-bench"}, modelPath{node.Base + "/llm/v1", out.Token}

	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w,
		"model gateway\tfirst byte, ms (median / p90 / max)\tdirectly\tratio of medians\tCPU a request, "+
			"ms\tdirectly\tratio\tof it the nodes'")
	for _, stream := range []bool{false, true} {
		for _, clients := range []int{1, 16} {
			direct.load(t, requests/10, clients, stream)
			gateway.load(t, requests/10, clients, stream)
			var ours, theirs durations
			var spent, alone, nodes time.Duration
			for range rounds {
				before := ownCPU(t)
				theirs = append(theirs, direct.load(t, requests/rounds, clients, stream)...)
				alone += ownCPU(t) - before
				before, nodesBefore := ownCPU(t), cpuOfNodes(t, f)
				ours = append(ours, gateway.load(t, requests/rounds, clients, stream)...)
				nodes += cpuOfNodes(t, f) - nodesBefore
				spent += ownCPU(t) - before
			}
			each := func(d time.Duration) float64 { return ms(d) / float64(len(ours)) }
			what := map[bool]string{false: "an answer of 1 KiB", true: "a stream of 50 events"}[stream]
			fmt.Fprintf(w, "%s, clients %d\t%.2f / %.2f / %.2f\t%.2f / %.2f / %.2f\t%.2f\t%.3f\t%.3f\t%.2f\t%.3f\n", what,
				clients,
				ms(ours.at(.5)), ms(ours.at(.9)), ms(ours.at(1)), ms(theirs.at(.5)), ms(theirs.at(.9)), ms(theirs.at(1)),
				ms(ours.at(.5))/ms(theirs.at(.5)),
				each(spent+nodes), each(alone), float64(spent+nodes)/float64(alone), each(nodes))
		}
	}
	w.Flush()
	t.Logf("\n%s", text.String())
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("load %s", load)
	var usage json.RawMessage
	if err := f.Nodes[0].Get("/api/v1/operator/usage", &usage); err != nil {
		t.Error(err)
	}
	t.Logf("counted: %s", usage)
}
