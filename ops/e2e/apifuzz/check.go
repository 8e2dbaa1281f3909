package apifuzz

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// Failure is one violated rule.
type Failure struct {
	// Rule is what was violated, Request what violated it, Detail the response.
	Rule, Request, Detail string
}

// String formats the failure.
func (f Failure) String() string {
	return f.Rule + "\n  request: " + f.Request + "\n  answer:  " + f.Detail
}

// judge checks a response and returns its failures.
func (w *World) judge(r *request, a answer, fault string) []Failure {
	var list []Failure
	bad := func(format string, args ...any) {
		list = append(list,
			Failure{
				Rule:    fmt.Sprintf(format, args...),
				Request: r.String(),
				Detail:  fmt.Sprintf("%d %s", a.status, clip(string(a.body), 800)),
			})
	}
	if a.status >= 500 && !excused(r, a, fault) {
		bad("%d", a.status)
	}
	w.judgeSecrets(r, a, bad)
	w.judgeAccess(r, a, bad)
	if r.elsewhere || r.method == http.MethodHead {
		return list
	}
	judgeDescribed(r, a, bad)
	return list
}

// excused reports which 5xx are no failure: those during a fault, and those that the API
// prescribes for a sandbox that can't take a message or does not run (API.md, "Conversations:
// send a message").
func excused(r *request, a answer, fault string) bool {
	said := a.header.Get("Retry-After") != ""
	if fault != "" && a.status == http.StatusServiceUnavailable && said {
		return true
	}
	switch r.op.id {
	case "conversation.send_message":
		return a.status == http.StatusBadGateway || a.status == http.StatusServiceUnavailable && said
	case "conversation.files",
		"conversation.git_changes",
		"conversation.git_diff",
		"conversation.skills",
		"conversation.hooks",
		"conversation.switch_acp_model",
		"conversation.switch_llm":
		return a.status == http.StatusBadGateway || a.status == http.StatusGatewayTimeout
	case "conversation.download":
		return a.status == http.StatusBadGateway || a.status == http.StatusServiceUnavailable
	}
	return false
}

// judgeSecrets looks for secrets that the caller must not see.
func (w *World) judgeSecrets(r *request, a answer, bad func(string, ...any)) {
	hidden := map[string]string{
		"B's secret": w.b.secret, "B's MCP secret": w.b.mcp, "B's key": w.b.key, "the key of B's sandbox": w.b.sandboxKey,
		"what is B's alone":  w.b.private,
		"the operator's key": w.operator, "A's key": w.a.key, "A's secret": w.a.secret, "A's MCP secret": w.a.mcp,
	}
	if r.op.id == "sandbox.secret" && r.caller.who == "sandbox" {
		delete(hidden, "A's secret")
	}
	settings := r.op.path == "/api/settings" || r.op.path == "/api/v1/settings"
	if settings && r.method == http.MethodGet && r.caller.who == "a" {
		delete(hidden, "A's MCP secret") // clients can send back what they read
	}
	if strings.HasPrefix(r.op.id, "conversation.operator_") && r.caller.who == "operator" {
		delete(hidden, "what is B's alone") // titles are shown to operators; secrets are not
	}
	text := string(a.body)
	for name, values := range a.header {
		text += "\n" + name + ": " + strings.Join(values, ", ")
	}
	for what, secret := range hidden {
		if strings.Contains(text, secret) {
			bad("%s is in the answer", what)
		}
	}
	if r.op.id == "sandbox.share" || r.elsewhere {
		return // a repetition has the token again
	}
	for _, token := range w.shareTokens() {
		if strings.Contains(text, token) {
			bad("the token of a share is in the answer")
		}
	}
}

// judgeAccess checks that a key gives access to nothing but its own.
func (w *World) judgeAccess(r *request, a answer, bad func(string, ...any)) {
	// This one needs the key of a sandbox besides.
	second := r.op.id == "user.me" && strings.Contains(r.target, "expose_secrets")
	if r.sound && !second && a.status == http.StatusUnauthorized && r.op.access != "sandbox" &&
		r.op.access != "open" && (r.caller.who == "a" || r.caller.who == "operator") {
		bad("%s has a key that does not work any more", r.caller.name)
	}
	if a.status/100 != 2 || r.op.access == "open" || r.method == http.MethodOptions {
		return
	}
	mayPass := map[string][]string{
		"user":     {"a", "operator"},
		"operator": {"operator"},
		"sandbox":  {"sandbox"},
	}[r.op.access]
	if !slices.Contains(mayPass, r.caller.who) {
		bad("%s got through", r.caller.name)
	}
	// A webhook names a conversation; the looks at what is B's judge it.
	if r.caller.who == "sandbox" && r.op.id != "webhook.conversation" && !strings.Contains(r.target, r.caller.sandbox) {
		bad("A's sandbox reached beyond itself")
	}
}

// judgeDescribed checks that the response is a described one.
func judgeDescribed(r *request, a answer, bad func(string, ...any)) {
	kind := a.header.Get("Content-Type")
	ref := r.op.op.Responses.Status(a.status)
	if a.status == http.StatusRequestHeaderFieldsTooLarge ||
		a.status == http.StatusBadRequest && strings.HasPrefix(kind, "text/plain") ||
		a.status == http.StatusExpectationFailed {
		return // net/http's own response, before any route
	}
	if path, _, _ := strings.Cut(r.target, "?"); a.status == http.StatusTemporaryRedirect && strings.HasSuffix(path, "/") {
		return // an empty last parameter: the router leads to the path without it
	}
	if ref == nil {
		bad("the status is not described")
		return
	}
	if len(ref.Value.Content) == 0 && kind == "" && len(a.body) == 0 {
		return
	}
	media := ref.Value.Content.Get(kind)
	if media == nil {
		bad("the type %q is not described", kind)
		return
	}
	if !strings.HasPrefix(kind, "application/json") {
		return
	}
	var v any
	if err := json.Unmarshal(a.body, &v); err != nil {
		bad("it is not JSON: %v", err)
		return
	}
	if err := media.Schema.Value.VisitJSON(v, openapi3.VisitAsResponse(), openapi3.EnableFormatValidation()); err != nil {
		var schema *openapi3.SchemaError
		if errors.As(err, &schema) {
			bad("the answer is not as described, at /%s: %s", strings.Join(schema.JSONPointer(), "/"), schema.Reason)
			return
		}
		bad("the answer is not as described: %v", err)
	}
}

// InFiles looks for the secrets in files and reports where one is.
func (w *World) InFiles(paths []string) ([]string, error) {
	var found []string
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) { // rotated or compacted meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		text := string(raw)
		for what, secret := range w.Secrets() {
			if at := strings.Index(text, secret); at >= 0 {
				found = append(found, fmt.Sprintf("%s is in %s: …%q", what, path, text[max(0, at-200):at]))
			}
		}
	}
	return found, nil
}
