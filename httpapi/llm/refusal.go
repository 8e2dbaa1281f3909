package llm

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// The reasons for refusals, a label of the metrics.
const (
	reasonToken    = preset.ReasonToken
	reasonModel    = "model"
	reasonBudget   = "budget"
	reasonHost     = "host"
	reasonEndpoint = "endpoint"
	reasonBody     = "body"
	reasonBusy     = preset.ReasonBusy
	reasonOff      = "off"
	reasonFailed   = preset.ReasonFailed
)

func reasons() []string {
	return []string{
		reasonToken,
		reasonModel,
		reasonBudget,
		reasonHost,
		reasonEndpoint,
		reasonBody,
		reasonBusy,
		reasonOff,
		reasonFailed,
	}
}

// refusal is the gateway's own answer in place of the model's.
type refusal struct {
	status     int
	reason     string
	text       string
	retryAfter time.Duration
	// limit is whose limit it was (preset.HeaderLimit), "" where it was none.
	limit string
}

// Error implements error.
func (e *refusal) Error() string { return e.text }

func refuse(status int, reason, format string, args ...any) *refusal {
	return &refusal{status: status, reason: reason, text: fmt.Sprintf(format, args...)}
}

// errToken is the refusal of every token that is not good, whatever is wrong with it.
func errToken() *refusal {
	return refuse(http.StatusUnauthorized, reasonToken, "the gateway token is not valid, or its sandbox is paused or gone")
}

// errNoKey is the refusal of a request whose endpoint had a key that its user's settings have no more.
func errNoKey(host string) *refusal {
	return refuse(http.StatusBadRequest, reasonEndpoint, "the key for %s, where this conversation goes, "+
		"is no longer stored: store llm_api_key with that llm_base_url again, "+
		"or let the conversation's owner move it with POST /api/v1/app-conversations/{id}/switch_llm", host)
}

func errBusy(what string) *refusal {
	r := refuse(http.StatusTooManyRequests, reasonBusy, "too many %s are in progress on this node; nothing was sent", what)
	r.retryAfter, r.limit = time.Second, preset.LimitNode
	return r
}

// errUserBusy is errBusy for a limit that each user has.
func errUserBusy(what string) *refusal {
	r := errBusy(what)
	r.limit = preset.LimitUser
	return r
}

// refusalOf turns any error into a refusal. The texts of unknown ones go to the log only.
func refusalOf(err error) *refusal {
	var own *refusal
	if errors.As(err, &own) {
		return own
	}
	f := response.FailureOf(err, response.FormatDetail, "")
	return &refusal{
		status:     f.Status,
		reason:     reasonFailed,
		text:       "the gateway can't serve the request now: " + http.StatusText(f.Status),
		retryAfter: time.Second,
	}
}

// errorBody is a refusal in the words of all three APIs: OpenAI's and Anthropic's clients read type
// and message, Gemini's status and message.
type errorBody struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Code    any    `json:"code"`
		Message string `json:"message"`
		Status  string `json:"status"`
	} `json:"error"`
	Detail string `json:"detail"`
}

// kindOf returns Anthropic's and Google's word for a status.
func kindOf(status int) (kind, google string) {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error", "UNAUTHENTICATED"
	case http.StatusForbidden:
		return "permission_error", "PERMISSION_DENIED"
	case http.StatusNotFound:
		return "not_found_error", "NOT_FOUND"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large", "INVALID_ARGUMENT"
	case http.StatusTooManyRequests:
		return "rate_limit_error", "RESOURCE_EXHAUSTED"
	}
	if status >= http.StatusInternalServerError {
		return "api_error", "UNAVAILABLE"
	}
	return "invalid_request_error", "INVALID_ARGUMENT"
}

// write sends the refusal in the API's format.
func (e *refusal) write(w http.ResponseWriter, api wire) {
	b := errorBody{Type: "error", Detail: e.text}
	b.Error.Message, b.Error.Code = e.text, preset.CodePrefix+e.reason
	b.Error.Type, b.Error.Status = kindOf(e.status)
	if api == wireGemini {
		b.Error.Code = e.status
	}
	body, err := response.Encode(b)
	if err != nil {
		body = []byte(`{"detail":"Internal Server Error"}`)
	}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.retryAfter.Seconds()))))
	}
	if e.limit != "" {
		w.Header().Set(preset.HeaderLimit, e.limit)
	}
	response.WriteJSON(w, e.status, body)
}
