package native

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// A request is made and fitted in the form of chat completions and is written in the form of its API
// last of all, so that each repair works in every one. What is read is known by its own form, whatever
// was asked for.

// kept are the thoughts before a call, as their maker wants them back.
type kept struct {
	blocks []event.ThinkingBlock // Messages
	item   event.Any             // Responses, in upstream's form
}

// thoughts are the kept thoughts by the id of the call after them.
type thoughts map[string]kept

// thoughtsOf returns the kept thoughts of a view.
func thoughtsOf(shown []event.Event) thoughts {
	all := thoughts{}
	for _, e := range shown {
		b, is := e.(*batch)
		if !is {
			continue
		}
		for _, a := range b.calls {
			if _, twice := all[a.ToolCallID]; !twice && len(a.ThinkingBlocks)+len(a.ResponsesReasoningItem) > 0 {
				all[a.ToolCallID] = kept{a.ThinkingBlocks, a.ResponsesReasoningItem}
			}
		}
	}
	return all
}

// fitted returns the thoughts that may be sent with fitted messages: not those up to a refused one.
func (t thoughts) fitted(d dialect, list []openai.ChatCompletionMessage) thoughts {
	out := make(thoughts, len(t))
	for id, k := range t {
		out[d.callID(id)] = k
	}
	refused := 0
	for i, m := range list {
		if slices.ContainsFunc(m.ToolCalls, func(c openai.ToolCall) bool { return c.ID != "" && c.ID == d.noThoughtsTo }) {
			refused = i + 1
		}
	}
	for _, m := range list[:refused] {
		for _, c := range m.ToolCalls {
			delete(out, c.ID)
		}
	}
	return out
}

// outgoing is a request in the form of its API.
type outgoing struct {
	api    preset.API
	stream bool
	body   []byte
}

// write fits a prompt's request to the server and writes it.
func (d dialect) write(asked openai.ChatCompletionRequest, t thoughts) (w outgoing, r *openai.ChatCompletionRequest) {
	r = d.fit(asked)
	w.api, w.stream = d.api, r.Stream
	var body any = r
	switch d.api {
	case preset.Messages:
		body = d.messagesRequest(r, t.fitted(d, r.Messages))
	case preset.Responses:
		body = d.responsesRequest(r, t.fitted(d, r.Messages))
	case preset.Completions:
	}
	w.body, _ = json.Marshal(body) // texts, numbers and schemas that were decoded encode
	return w, r
}

// otherAPI is what a refusal of the API itself changes, once.
func (d *dialect) otherAPI(f *callError) bool {
	if d.apiChanged {
		return false
	}
	to := preset.Completions
	switch {
	case d.api == preset.Completions && wantsResponses.MatchString(f.said):
		to = preset.Responses
	case d.api == preset.Completions:
		return false
	case noSuchAPI.MatchString(f.said):
	case f.status != http.StatusNotFound && f.status != http.StatusMethodNotAllowed &&
		f.status != http.StatusNotImplemented, namesModel.MatchString(f.said):
		return false
	}
	d.api, d.apiChanged = to, true
	return true
}

// Texts about an API, by which another one is asked.
var ( //nolint:gochecknoglobals // compiled once, read-only
	wantsResponses = regexp.MustCompile("(?i)(only supported in|please use|use the|try) `?/?v1/responses|" +
		`use the responses api|only available (in|through|via) the responses api|` +
		`not accessible via the /chat/completions|chatCompletion operation does not work with`)
	noSuchAPI = regexp.MustCompile(
		`(?i)does not serve this API|responses API is not (supported|enabled)|unknown url|invalid url`)
	namesModel = regexp.MustCompile(`(?i)\bmodel\b`)
)

// event reads one event of a stream or a whole answer, in the form that it has.
func (a *parts) event(data []byte) error {
	var is struct {
		Type   loose `json:"type"`
		Object loose `json:"object"`
	}
	_ = json.Unmarshal(data, &is) // what is of no form known is read as a chunk, which says what is wrong
	switch kind := string(is.Type); {
	case isMessages(kind):
		return a.checked(a.addMessages(kind, data))
	case is.Object == "response" || isResponses(kind):
		return a.checked(a.addResponses(kind, data))
	case kind == "error":
		return errorEvent(data)
	}
	var f frame
	if err := json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("the stream is not valid: %w", err)
	}
	return a.add(f)
}

// checked is the error of a part, or that of an answer which is too large with it.
func (a *parts) checked(err error) error {
	switch {
	case err != nil:
		return err
	case a.size > largestAnswer:
		return errUnbounded
	case len(a.calls) > mostCalls:
		return errCalls
	case len(a.streams) > mostItems:
		return errItems
	}
	return nil
}

// errorEvent is the error that an event of the type error has: in a member, or in the event itself.
func errorEvent(data []byte) error {
	var is struct {
		Error json.RawMessage `json:"error"`
	}
	_ = json.Unmarshal(data, &is) // without a member it is the event
	raw := is.Error
	if saysError(raw) == nil {
		raw = data
	}
	return failedWith(raw)
}

// failedWith is an error whose kind is a word in the place of a status.
func failedWith(raw json.RawMessage) error {
	e := saysError(raw)
	if e == nil {
		return &serverError{message: "the model's server broke the answer off"}
	}
	var is struct {
		Type loose `json:"type"`
		Code loose `json:"code"`
	}
	_ = json.Unmarshal(raw, &is) // an error of another form has no kind
	if e.status == 0 {
		e.status = cmp.Or(statusOf(string(is.Code)), statusOf(string(is.Type)))
	}
	return e
}

// statusOf is the status that goes with the kind of an error; 0 is unknown.
func statusOf(kind string) int {
	switch kind {
	case "rate_limit_error", "rate_limit_exceeded":
		return http.StatusTooManyRequests
	case "overloaded_error", "api_error", "server_error", "upstream_error":
		return http.StatusServiceUnavailable
	case "timeout_error":
		return http.StatusGatewayTimeout
	case "authentication_error":
		return http.StatusUnauthorized
	case "permission_error":
		return http.StatusForbidden
	case "billing_error", "insufficient_quota":
		return http.StatusPaymentRequired
	case "context_length_exceeded", "invalid_prompt", "invalid_encrypted_content":
		return http.StatusBadRequest
	}
	return 0
}
