package native

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
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
	retryable bool
	wait      time.Duration // the server's Retry-After, where that is too long
}

func (f *callError) Error() string { return f.err.Error() }
func (f *callError) Unwrap() error { return f.err }

// Texts by which servers without common codes are understood.
var (
	tooLong = regexp.MustCompile(`(?i)context_length_exceeded|maximum context length|context window|context ` +
		`length|prompt is too long|` +
		`input is too long|too many tokens|exceeds? the (model'?s )?(maximum|limit|available ` +
		`context)|request too large|max_model_len`)
	malformed = regexp.MustCompile(
		`(?i)tool_call_ids?\b.*(response|respond|follow|result|answer)|tool_use.*tool_result|tool_result.*tool_use|` +
			`must (be followed by|follow).*tool|unexpected (tool|role)`,
	)
	filtered = regexp.MustCompile(`(?i)content_filter|content management policy|content_policy|ResponsibleAIPolicy`)
	noQuota  = regexp.MustCompile(`(?i)insufficient_quota|exceeded your current quota|budget|billing|credit balance`)
)

// classify reads an error of one call. begun says that a good answer had begun, after which there
// is no retry.
func classify(err error, begun bool) *callError {
	f := &callError{err: err, message: err.Error()}
	var api *openai.APIError
	var request *openai.RequestError
	switch {
	case errors.Is(err, errTimeout):
		f.code = codeTimeout
	case errors.As(err, &api):
		f.status, f.message = api.HTTPStatusCode, api.Message
		f.byStatus(fmt.Sprint(api.Code, " ", api.Type, " ", api.Message))
	case errors.As(err, &request):
		f.status, f.message = request.HTTPStatusCode, string(request.Body)
		f.byStatus(f.message)
	case begun:
		f.code = codeNoResponse
	default: // refused, reset, closed: the server was not reached
		f.code, f.retryable = codeUnavailable, true
	}
	f.retryable = f.retryable && !begun
	return f
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
	case f.status >= http.StatusInternalServerError:
		f.code, f.retryable = codeUnavailable, true
	case f.status == 0: // an error in a stream
		f.code = codeNoResponse
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
		failure.Detail = "The model's server limits the rate of requests. Try again later. " + said
		if f.wait > 0 {
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
