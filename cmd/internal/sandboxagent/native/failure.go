package native

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// The codes of failures, which event.Classify knows.
const (
	codeNotConfigured = "LLMNotConfigured"
	codeAuth          = "LLMAuthenticationError"
	codeRateLimit     = "LLMRateLimitError"
	codeBudget        = "LLMBudgetError"
	codeUnavailable   = "LLMServiceUnavailableError"
	codeTimeout       = "LLMTimeoutError"
	codeNoResponse    = "LLMNoResponseError"
	codeBadRequest    = "LLMBadRequestError"
	codeContext       = "LLMContextWindowExceedError"
	codePolicy        = "UsagePolicyRefusal"
	codeOutput        = "LLMOutputLimitError"
	codeInternal      = "InternalError"
)

// refusal is an error of the model's server that another request may avoid.
type refusal struct {
	kind   refusalKind
	detail string
}

type refusalKind int

const (
	refusedLength  refusalKind = iota // the history is too long
	refusedHistory                    // the history is malformed
	refusedContent                    // a content filter
)

func (r *refusal) Error() string { return r.detail }

// callError is one failed call of the model.
type callError struct {
	err       error
	code      string
	refused   *refusalKind
	status    int
	message   string
	said      string // all that the server said, by which the next request is made fit
	retryable bool
	wait      time.Duration // the server's Retry-After
	told      bool          // whether there is one
	spent     answer        // its usage and cost are what the call cost
	limit     string        // whose limit it was (preset.HeaderLimit)
}

func (f *callError) Error() string { return f.err.Error() }
func (f *callError) Unwrap() error { return f.err }

// Texts by which servers without common codes are understood.
var (
	tooLong = regexp.MustCompile(`(?i)context_length_exceeded|maximum context length|context window|context ` +
		`length|prompt is too long|` +
		`input is too long|too many tokens|exceeds? the (model'?s )?(maximum|limit|available ` +
		`context)|request too large|max_model_len|exceed context limit`)
	malformed = regexp.MustCompile(
		`(?i)tool_call_ids?\b.*(response|respond|follow|result|answer)|tool_use.*tool_result|tool_result.*tool_use|` +
			`must (be followed by|follow).*tool|unexpected (tool|role)`,
	)
	filtered  = regexp.MustCompile(`(?i)content_filter|content management policy|content_policy|ResponsibleAIPolicy`)
	noQuota   = regexp.MustCompile(`(?i)insufficient_quota|exceeded your current quota|budget|billing|credit balance`)
	namedWait = regexp.MustCompile(`(?i)(?:try again|retry) in ([\d.]+) ?(ms|s)`)
)

// serverError is an error that a server says, in the place of an answer or within it.
type serverError struct {
	status  int // 0 is unknown
	message string
	text    string // all that it says
}

func (e *serverError) Error() string { return e.message }

// longestError bounds what is read of an error, in bytes.
const longestError = 64 << 10

// saysError reads the member error of a frame; nil if it says nothing.
func saysError(raw json.RawMessage) *serverError {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "{}", `""`, "false":
		return nil
	}
	e := &serverError{text: string(raw[:min(len(raw), longestError)])}
	if len(raw) > longestError {
		e.message = e.text
		return e
	}
	var says struct {
		Message  loose  `json:"message"`
		Code     amount `json:"code"`
		Status   amount `json:"status"`
		Metadata struct {
			Raw loose `json:"raw"` // what OpenRouter's provider said
		} `json:"metadata"`
	}
	if json.Unmarshal(raw, &says) != nil {
		var text loose
		_ = json.Unmarshal(raw, &text) // loose takes anything
		e.message = string(text)
		return e
	}
	e.message = strings.TrimSpace(string(says.Message) + " " + string(says.Metadata.Raw))
	if e.message == "" {
		e.message = e.text
	}
	if code := max(int(says.Code), int(says.Status)); code >= http.StatusBadRequest && code < 600 {
		e.status = code
	}
	return e
}

// refusedWith reads the body of a response with an error's status.
func refusedWith(status int, body []byte) *serverError {
	var says struct {
		Error   json.RawMessage `json:"error"`
		Message loose           `json:"message"`
		Detail  loose           `json:"detail"`
	}
	e := &serverError{message: string(body)}
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0] // Gemini's compatible endpoint
	}
	if json.Unmarshal(body, &says) == nil {
		if inner := saysError(says.Error); inner != nil {
			e = inner
		} else if text := cmp.Or(says.Message, says.Detail); text != "" {
			e.message = string(text)
		}
	}
	e.status, e.text = status, string(body)
	return e
}

// redirected is the error of a response that leads elsewhere.
func redirected(resp *http.Response) *serverError {
	to := "another place"
	if where, err := resp.Location(); err == nil {
		where.RawQuery, where.Fragment, where.User = "", "", nil
		to = where.String()
	}
	return &serverError{status: resp.StatusCode, message: "it redirects to " + to +
		", which is not followed: set the base URL to where it leads"}
}

// classify reads an error of one call. begun says that a good answer had begun.
func classify(err error, begun bool) *callError {
	f := &callError{err: err, message: err.Error()}
	var says *serverError
	switch {
	case errors.Is(err, errTimeout):
		f.code, f.retryable = codeTimeout, true
	case errors.As(err, &says):
		f.status, f.message, f.said = says.status, says.message, says.text
		f.byStatus(says.text)
		f.wait, f.told = f.saidWait()
	case errors.Is(err, errUnbounded):
		f.code = codeNoResponse
	case begun: // reset, cut, empty or no answer at all
		f.code, f.retryable = codeNoResponse, true
	default: // refused, reset, closed: the server was not reached
		f.code, f.retryable = codeUnavailable, true
	}
	return f
}

// saidWait is the wait that the text of a rate limit names, as OpenAI and Gemini write it.
func (f *callError) saidWait() (time.Duration, bool) {
	m := namedWait.FindStringSubmatch(f.said)
	if f.code != codeRateLimit || m == nil {
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil || n > 1e6 {
		return 0, false
	}
	unit := time.Second
	if m[2] == "ms" {
		unit = time.Millisecond
	}
	return time.Duration(n * float64(unit)), true
}

// byStatus classifies an error that the server sent. text is all it says.
func (f *callError) byStatus(text string) {
	refused := func(k refusalKind, code string) { f.refused, f.code = &k, code }
	if f.status != http.StatusTooManyRequests && f.status != http.StatusUnauthorized {
		switch {
		case filtered.MatchString(text):
			refused(refusedContent, codePolicy)
			return
		case tooLong.MatchString(text) || f.status == http.StatusRequestEntityTooLarge:
			refused(refusedLength, codeContext)
			return
		case f.status == http.StatusBadRequest && malformed.MatchString(text):
			refused(refusedHistory, codeBadRequest)
			return
		}
	}
	switch {
	case f.status == http.StatusUnauthorized, f.status == http.StatusForbidden:
		f.code = codeAuth
	case f.status == http.StatusPaymentRequired, f.status == http.StatusTooManyRequests && noQuota.MatchString(text):
		f.code = codeBudget
	case f.status == http.StatusTooManyRequests:
		f.code, f.retryable = codeRateLimit, true
	case f.status == http.StatusRequestTimeout, f.status == http.StatusGatewayTimeout:
		f.code, f.retryable = codeTimeout, true
	case f.status >= http.StatusInternalServerError, f.status == http.StatusTooEarly:
		f.code, f.retryable = codeUnavailable, true
	case f.status == 0: // an error in an answer
		f.code, f.retryable = codeNoResponse, true
	default:
		f.code = codeBadRequest
	}
}

// result is the error for the step: a refusal, or a failure with what to do.
func (f *callError) result(c *client) error {
	message := strings.TrimSpace(f.message)
	if key := c.llm.APIKey; len(key) > 2 {
		message = strings.ReplaceAll(message, key, "<secret-hidden>")
	}
	if r := []rune(message); len(r) > 600 {
		message = string(r[:600]) + "…"
	}
	if f.refused != nil {
		return &refusal{*f.refused, message}
	}
	said := "The model's server said"
	if f.limit == preset.LimitUser || f.limit == preset.LimitNode {
		said = "A node said"
	}
	if f.status != 0 {
		said += fmt.Sprintf(" (HTTP %d)", f.status)
	}
	said += ": " + message
	failure := &engine.Failure{Code: f.code}
	switch f.code {
	case codeAuth:
		failure.Detail = "The model's server refuses the API key. Set another one in the settings. " + said
	case codeBudget:
		failure.Detail = "The quota or budget for the model is used up. " + said
	case codeRateLimit:
		failure.Detail = limitText(f.limit) + " Try again later. " + said
		if f.wait > longestRetryAfter {
			failure.Detail = fmt.Sprintf("The model's server limits the rate of requests. Try again in %s. %s", f.wait, said)
		}
	case codeTimeout:
		failure.Detail = fmt.Sprintf("The model %s did not answer within %s. Try again.", c.model, c.timeout())
	case codeUnavailable:
		failure.Detail = "The model's server can't be reached or has failed. Try again later. " + said
	case codeNoResponse:
		failure.Detail = "The model's answer was not complete or not valid. Try again. " + said
	default:
		failure.Detail = "The model's server refuses the request. Check the model and its settings. " + said
	}
	return failure
}

// limitText says whose limit a request exceeded.
func limitText(limit string) string {
	switch limit {
	case preset.LimitUser:
		return "Your own conversations have as many requests to models in progress as one user may have."
	case preset.LimitNode:
		return "The nodes have as many requests to models in progress as they take."
	}
	return "The model's server limits the rate of requests."
}
