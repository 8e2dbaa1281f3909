package response

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// Format is an endpoint's error format (API.md, "Errors"). Every format has the member detail, so
// one decoder works for all.
type Format int

const (
	// FormatDetail is {"detail"}: V1 and everything else outside V0.
	FormatDetail Format = iota
	// FormatError is {"error", "detail"}: V0 settings and git providers.
	FormatError
	// FormatStatus is {"status", "message", "msg_id", "detail"}: V0
	// conversations.
	FormatStatus
)

// msgIDError is the msg_id of V0 conversation errors without a specific one.
const msgIDError = "STATUS$ERROR"

// Bodies of the error formats.
type (
	detailBody struct {
		Detail any `json:"detail"`
	}
	errorBody struct {
		Error  string `json:"error"`
		Detail string `json:"detail"`
	}
	// StatusBody is the body of V0 conversation errors.
	StatusBody struct {
		Status  string `json:"status"`
		Message string `json:"message"`
		MsgID   string `json:"msg_id"`
		Detail  string `json:"detail"`
	}
	// Bodies of a 429, with the limit's name for programs where it has one.
	limitBody struct {
		Detail string `json:"detail"`
		Limit  string `json:"limit,omitempty"`
	}
	limitStatusBody struct {
		StatusBody
		Limit string `json:"limit,omitempty"`
	}
	messageBody struct {
		Message string `json:"message"`
		Detail  string `json:"detail"`
	}
)

func (s Format) body(text string) any {
	switch s {
	case FormatError:
		return errorBody{Error: text, Detail: text}
	case FormatStatus:
		return newStatusBody(text)
	}
	return detailBody{Detail: text}
}

func newStatusBody(text string) StatusBody {
	return StatusBody{Status: "error", Message: text, MsgID: msgIDError, Detail: text}
}

// limit is body for a reached limit.
func (s Format) limit(text, name string) any {
	if s == FormatStatus {
		return limitStatusBody{StatusBody: newStatusBody(text), Limit: name}
	}
	return limitBody{Detail: text, Limit: name}
}

// HTTPError is an error with its own status and text (API.md, "Errors"). If Body is nil, the
// endpoint's format applies.
type HTTPError struct {
	Status int
	Text   string
	Body   any
	// RetryAfter, if positive, becomes the Retry-After header, rounded up to seconds.
	RetryAfter time.Duration
	// Cause goes to the log only.
	Cause error
}

// Error implements error.
func (e *HTTPError) Error() string {
	if e.Cause != nil {
		return e.Text + ": " + e.Cause.Error()
	}
	return e.Text
}

// Unwrap returns the cause.
func (e *HTTPError) Unwrap() error { return e.Cause }

// Error returns an error in the {"detail"} format, whatever the endpoint's format is.
func Error(status int, text string) *HTTPError {
	return &HTTPError{Status: status, Text: text, Body: detailBody{Detail: text}}
}

// Unauthorized is the 401 of every endpoint.
func Unauthorized() *HTTPError { return Error(http.StatusUnauthorized, "Unauthorized") }

// NotFound is the generic 404.
func NotFound() *HTTPError { return Error(http.StatusNotFound, "Not Found") }

// TooManyRequests is the 429 of the rate limits.
func TooManyRequests() *HTTPError {
	const text = "Too many requests"
	return &HTTPError{Status: http.StatusTooManyRequests, Text: text,
		Body: messageBody{Message: text, Detail: text}, RetryAfter: time.Second}
}

// row is the HTTP error for one error code.
type row struct {
	status int
	// text replaces the error's own text, which then only goes to the log.
	text string
	// retryAfter is the default Retry-After.
	retryAfter time.Duration
}

// rowOf is the one table from error codes to statuses. An unknown code is an internal error.
func rowOf(code fsm.Code) row {
	const soon = time.Second
	//exhaustive:enforce
	switch code {
	case fsm.CodeInvalid, fsm.CodeIdempotencyMismatch:
		return row{status: http.StatusUnprocessableEntity}
	case fsm.CodeUnauthorized:
		return row{status: http.StatusUnauthorized, text: "Unauthorized"}
	case fsm.CodeForbidden:
		return row{status: http.StatusForbidden}
	case fsm.CodeNotFound:
		return row{status: http.StatusNotFound}
	case fsm.CodeConflict, fsm.CodeProtocol:
		return row{status: http.StatusConflict}
	case fsm.CodeLimit:
		return row{status: http.StatusTooManyRequests, retryAfter: 30 * soon}
	case fsm.CodePoolEmpty:
		return row{http.StatusServiceUnavailable, "No warm sandbox is left; nothing was done. Try again.", soon}
	case fsm.CodeNoLeader:
		return row{http.StatusServiceUnavailable, "The cluster has no leader right now; nothing was done. Try again.", soon}
	case fsm.CodeOutcomeUnknown:
		return row{http.StatusServiceUnavailable,
			"The outcome of this request is unknown: it may have been done or may yet be. " +
				"Repeat it with the same Idempotency-Key, or look before you repeat it.", soon}
	case fsm.CodeSecretStore:
		return row{
			http.StatusServiceUnavailable,
			"The secret store is unavailable; nothing was stored. Try again later.",
			5 * soon,
		}
	case fsm.CodeNoRoom:
		return row{http.StatusServiceUnavailable, "The cluster has no room for this; nothing was done. Try again later.",
			10 * soon}
	case fsm.CodeScheduler:
		return row{http.StatusServiceUnavailable, "The scheduler is unavailable. Try again later.", 5 * soon}
	case fsm.CodeShuttingDown:
		return row{http.StatusServiceUnavailable, "This node is stopping. Try another one.", soon}
	case fsm.CodeTimeout:
		return row{http.StatusServiceUnavailable, "This took too long; nothing was done. Try again.", soon}
	case fsm.CodeInternal:
	}
	return row{status: http.StatusInternalServerError, text: "Internal Server Error"}
}

// Failure is an error response.
type Failure struct {
	Status     int
	Body       any
	retryAfter time.Duration
	challenge  bool
}

// FailureOf converts any error to a response. internal replaces "Internal Server Error" if not "".
func FailureOf(err error, s Format, internal string) Failure {
	var fields *decode.Problems
	if errors.As(err, &fields) {
		return Failure{Status: http.StatusUnprocessableEntity, Body: detailBody{Detail: fields.List}}
	}
	var own *HTTPError
	if errors.As(err, &own) {
		f := Failure{Status: own.Status, Body: own.Body, retryAfter: own.RetryAfter}
		if f.Body == nil {
			f.Body = s.body(own.Text)
		}
		f.challenge = own.Status == http.StatusUnauthorized && own.Text == "Unauthorized"
		return f
	}
	var coded *fsm.Error
	if !errors.As(err, &coded) {
		coded = &fsm.Error{Code: fsm.CodeInternal}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			coded.Code = fsm.CodeTimeout
		}
	}
	return codedFailure(coded, s, internal)
}

// codedFailure is FailureOf for an fsm error.
func codedFailure(e *fsm.Error, s Format, internal string) Failure {
	r := rowOf(e.Code)
	f := Failure{Status: r.status, retryAfter: r.retryAfter}
	if e.RetryAfter > 0 {
		f.retryAfter = e.RetryAfter
	}
	text := r.text
	switch {
	case text == "":
		text = decode.Redact(e.Message)
	case r.status == http.StatusInternalServerError && internal != "":
		text = internal
	}
	switch e.Code {
	case fsm.CodeInvalid:
		f.Body = detailBody{Detail: ruleProblem([]string{"body"}, text)}
	case fsm.CodeIdempotencyMismatch:
		f.Body = detailBody{Detail: ruleProblem([]string{"header", "Idempotency-Key"},
			"this Idempotency-Key was used before with another request")}
	case fsm.CodeUnauthorized:
		f.Body, f.challenge = detailBody{Detail: text}, true
	case fsm.CodeLimit:
		f.Body = s.limit(text, e.Limit)
	default:
		f.Body = s.body(text)
	}
	return f
}

// ruleProblem formats a rule that the state machine enforces as a validation error.
func ruleProblem(loc []string, text string) []decode.Problem {
	var p decode.Problems
	p.Value(loc, text, nil)
	return p.List
}

// Write sends the response.
func (f Failure) Write(w http.ResponseWriter) {
	if f.retryAfter > 0 {
		seconds := int(math.Ceil(f.retryAfter.Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	if f.challenge {
		w.Header().Set("WWW-Authenticate", `Bearer realm="bivouac"`)
	}
	body, err := Encode(f.Body)
	if err != nil {
		body = []byte(`{"detail":"Internal Server Error"}`)
		f.Status = http.StatusInternalServerError
	}
	WriteJSON(w, f.Status, body)
}

// NotFoundAs replaces a CodeNotFound error by a 404 with upstream's text.
func NotFoundAs(err error, text string) error {
	if fsm.CodeOf(err) == fsm.CodeNotFound {
		return Error(http.StatusNotFound, text)
	}
	return err
}
