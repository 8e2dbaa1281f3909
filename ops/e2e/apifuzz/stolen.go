package apifuzz

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Stolen tries every described route, and the sandbox proxy, with the key of A's sandbox in
// every place a key can be sent. It returns what that key gave access to and should not have,
// and the number of requests.
func (w *World) Stolen(document []byte) (failures []Failure, requests int, err error) {
	list, err := describe(document)
	if err != nil {
		return nil, 0, err
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	for _, op := range list {
		for _, target := range w.targets(op) {
			for _, header := range w.places() {
				r := &request{
					op:     op,
					caller: w.ofSandbox(),
					node:   w.nodes[requests%len(w.nodes)],
					method: op.method,
					target: target,
					header: header,
					body:   []byte("{}"),
				}
				if op.method == http.MethodGet {
					r.body = nil
				}
				a, _, err := r.send(client, patience)
				if err != nil {
					return nil, requests, fmt.Errorf("%s: %w", r, err)
				}
				requests++
				failures = append(failures, w.judge(r, a, "")...)
			}
		}
	}
	proxied, n, err := w.proxied(client)
	return append(failures, proxied...), requests + n, err
}

// places are the headers that carry the key.
func (w *World) places() []map[string]string {
	const kind = "application/json"
	return []map[string]string{
		{"Content-Type": kind, "X-Session-API-Key": w.a.sandboxKey},
		{"Content-Type": kind, "Authorization": "Bearer " + w.a.sandboxKey},
		{
			"Content-Type":   kind,
			"X-Access-Token": w.a.sandboxKey,
			"Cookie":         "bivouac_proxy=" + w.a.sandboxKey + "; session_api_key=" + w.a.sandboxKey,
		},
	}
}

// targets fills an operation's path with ids of A, of B and of no one, and adds the key to the
// query.
func (w *World) targets(op *operation) []string {
	query := "?session_api_key=" + w.a.sandboxKey + "&tkn=" + w.a.sandboxKey + "&id=" + w.b.sandbox + "&ids=" +
		w.b.conversation + "&sandbox_id__eq=" + w.b.sandbox
	if !strings.Contains(op.path, "{") {
		return []string{op.path + query}
	}
	var out []string
	for _, p := range []person{
		w.a,
		w.b,
		{sandbox: "nosuch", conversation: "00000000000000000000000000000000", name: "nobody"},
	} {
		out = append(out, strings.NewReplacer("{sandbox_id}", p.sandbox, "{conversation_id}", p.conversation,
			"{secret_name}", "CUSTOM", "{id}", p.name,
			"{task_id}", p.conversation).Replace(op.path)+query)
	}
	return out
}

// proxied requests the sandboxes through the proxy: only A's may be reachable.
func (w *World) proxied(client *http.Client) (failures []Failure, requests int, err error) {
	proxy := &operation{id: "the proxy", access: "sandbox"}
	for _, path := range []string{
		"/sandboxes/" + w.a.sandbox + "/AGENT_SERVER/api/conversations/count", // its own sandbox
		"/sandboxes/" + w.b.sandbox + "/AGENT_SERVER/api/conversations/count",
		"/sandboxes/" + w.b.sandbox + "/agent-server/api/conversations/count", "/sandboxes/nosuch/AGENT_SERVER/",
		"/sandboxes/" + w.a.sandbox + "/../" + w.b.sandbox + "/AGENT_SERVER/api/conversations/count",
		"/sandboxes/" + w.a.sandbox + "%2f..%2f" + w.b.sandbox + "/AGENT_SERVER/api/conversations/count",
		"/sandboxes/" + w.b.sandbox + "/AGENT_SERVER/api/conversations/count?session_api_key=" + w.a.sandboxKey,
		"/sandboxes/" + w.b.sandbox + "/VSCODE/?tkn=" + w.a.sandboxKey, "//sandboxes/" + w.b.sandbox + "/AGENT_SERVER/",
	} {
		for _, header := range w.places() {
			r := &request{
				op:     proxy,
				caller: caller{name: "A's sandbox", who: "sandbox"},
				node:   w.nodes[requests%len(w.nodes)],
				method: http.MethodGet,
				target: path,
				header: header,
			}
			a, _, err := r.send(client, 30*time.Second)
			if err != nil {
				return failures, requests, fmt.Errorf("%s: %w", r, err)
			}
			own := requests < 1 // its own sandbox, with X-Session-API-Key
			requests++
			if (a.status == http.StatusOK) != own || a.status/100 == 2 && !own || strings.Contains(string(a.body), w.b.private) {
				failures = append(failures,
					Failure{
						Rule:    "the key of A's sandbox at the proxy",
						Request: r.String(),
						Detail:  fmt.Sprintf("%d %s", a.status, clip(string(a.body), 300)),
					})
			}
		}
	}
	return failures, requests, nil
}
