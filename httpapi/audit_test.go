package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// linesOf are the log lines of a request with a message.
func (h *harness) linesOf(request, msg string) (lines []map[string]any) {
	h.t.Helper()
	for text := range strings.Lines(h.logs.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			h.t.Fatalf("%v: %s", err, text)
		}
		if line["request"] == request && line["msg"] == msg {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestAudit_EveryOperatorsActIsALine calls every operators' route that changes something.
func TestAudit_EveryOperatorsActIsALine(t *testing.T) {
	t.Parallel()
	acts := 0
	for _, r := range routes() {
		if r.access != operator || r.method == http.MethodGet {
			continue
		}
		acts++
		id := "act-" + strings.ReplaceAll(r.name, ".", "-")
		h := newHarness(t, withLogs(&fakeLogs{})).withSpec().withSettings().raised()
		sb := h.createSandbox(h.alice)
		h.observe(sb, running())
		h.questioned(r, sb)
		method, path, body := sampleRequest(r, sb, h.conversation("alice", sb))
		h.do(h.root, method, path, body, "X-Request-Id", id)
		own := h.linesOf(id, "operator acts")
		users := h.linesOf(id, "operator acts for a user")
		if len(own)+len(users) != 1 {
			t.Errorf("%s: %d lines of the operator's act, %d of one for a user; want one line", r.name, len(own), len(users))
			continue
		}
		line := slices.Concat(own, users)[0]
		if line["operator"] != "root" || line["key"] != 1.0 || line["act"] == "" {
			t.Errorf("%s: %v", r.name, line)
		}
		if text := h.logs.String(); strings.Contains(text, h.root) {
			t.Errorf("%s: the log has the operator's key", r.name)
		}
	}
	if acts < 10 {
		t.Errorf("only %d routes", acts)
	}
}

// TestAudit_ARefusedActSaysSo: the line has the error.
func TestAudit_ARefusedActSaysSo(t *testing.T) {
	h := newHarness(t).raised()
	h.do(h.root, "POST", "/api/v1/operator/keys/99/disable", "", "X-Request-Id", "no-key").want(t, 404)
	lines := h.linesOf("no-key", "operator acts")
	if len(lines) != 1 || lines[0]["error"] == nil || lines[0]["object"] != "99" || lines[0]["act"] != "api_key.disable" {
		t.Errorf("%v", lines)
	}
}

// TestAudit_ARefusedKeyIsALine: unknown, revoked, and no operator's. A request without a key is none.
func TestAudit_ARefusedKeyIsALine(t *testing.T) {
	h := newHarness(t).withSpec().raised()
	wrong := h.alice[:len(h.alice)-1] + "!"
	revoked := h.issue("carol", false)
	h.do(h.root, "POST", "/api/v1/operator/users/carol/disable", "").want(t, 200)
	sb := h.createSandbox(h.alice)
	for _, c := range []struct{ id, key, path, reason string }{
		{"unknown", "bvk_aaaaaaaaaaaa_bbbbbbbbbbbbbbbb", "/api/settings", "unknown"},
		{"wrong", wrong, "/api/settings", "unknown"},
		{"disabled", revoked, "/api/settings", "revoked or expired, or its user is disabled"},
		{"user", h.alice, "/api/v1/operator/keys", "not an operator's"},
		{"proxy", wrong, "/sandboxes/" + sb + "/AGENT_SERVER/api/x", "unknown, revoked or expired, or its user is disabled"},
	} {
		if res := h.do(c.key, "GET", c.path, "", "X-Request-Id", c.id); res.status != 401 && res.status != 403 {
			t.Fatalf("%s: %d", c.id, res.status)
		}
		lines := h.linesOf(c.id, "key refused")
		if len(lines) != 1 || lines[0]["reason"] != c.reason || lines[0]["address"] == "" || lines[0]["level"] != "WARN" {
			t.Errorf("%s: %v", c.id, lines)
		}
	}
	h.do("", "GET", "/api/settings", "", "X-Request-Id", "none").want(t, 401)
	if lines := h.linesOf("none", "key refused"); len(lines) != 0 {
		t.Errorf("without a key: %v", lines)
	}
	if text := h.logs.String(); strings.Contains(text, wrong) || strings.Contains(text, revoked) {
		t.Error("the log has a key")
	}
}

// TestAudit_RefusedKeysAreBounded: whoever guesses writes no log without bounds, and what was left
// out is counted.
func TestAudit_RefusedKeysAreBounded(t *testing.T) {
	h := newHarness(t)
	for range 300 {
		h.do("bvk_guess", "GET", "/api/settings", "")
	}
	if n := strings.Count(h.logs.String(), `"msg":"key refused"`); n == 0 || n > 150 {
		t.Errorf("%d lines for 300 guesses", n)
	}
}

// TestRequestID_OfAWriteIsInItsLine: a request that makes a sandbox or a start task has it in its
// line, by which the sandbox's and the task's own lines are found.
func TestRequestID_OfAWriteIsInItsLine(t *testing.T) {
	h := newHarness(t).withSpec()
	h.do(h.alice, "POST", "/api/v1/sandboxes", "", "X-Request-Id", "make-1").want(t, 200)
	h.do(h.alice, "POST", "/api/v1/app-conversations", `{}`, "X-Request-Id", "start-1").want(t, 200)
	for id, member := range map[string]string{"make-1": "sandbox", "start-1": "task"} {
		lines := h.linesOf(id, "request served")
		if len(lines) != 1 || lines[0][member] == nil {
			t.Errorf("%s: %v", id, lines)
		}
	}
}
