package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// shape is how an endpoint words its failures (api-contract.md A.0.3). Every
// shape has the member detail, so one reader fits all.
type shape int

const (
	// shapeDetail is {"detail"}: V1 and everything that is not a V0 noun.
	shapeDetail shape = iota
	// shapeError is {"error", "detail"}: V0 settings and git providers.
	shapeError
	// shapeStatus is {"status", "message", "msg_id", "detail"}: V0
	// conversations.
	shapeStatus
)

// msgIDError is the msg_id of V0 conversation failures that have no id of
// their own.
const msgIDError = "STATUS$ERROR"

// The bodies of the shapes.
type (
	detailBody struct {
		Detail any `json:"detail"`
	}
	errorBody struct {
		Error  string `json:"error"`
		Detail string `json:"detail"`
	}
	statusBody struct {
		Status  string `json:"status"`
		Message string `json:"message"`
		MsgID   string `json:"msg_id"`
		Detail  string `json:"detail"`
	}
	// The shapes of a 429, with the limit's name for programs.
	limitBody struct {
		Detail string `json:"detail"`
		Limit  string `json:"limit"`
	}
	limitStatusBody struct {
		statusBody
		Limit string `json:"limit"`
	}
	messageBody struct {
		Message string `json:"message"`
		Detail  string `json:"detail"`
	}
)

func (s shape) body(text string) any {
	switch s {
	case shapeError:
		return errorBody{Error: text, Detail: text}
	case shapeStatus:
		return newStatusBody(text)
	}
	return detailBody{Detail: text}
}

func newStatusBody(text string) statusBody {
	return statusBody{Status: "error", Message: text, MsgID: msgIDError, Detail: text}
}

// limit is body for a limit that is reached.
func (s shape) limit(text, name string) any {
	if s == shapeStatus {
		return limitStatusBody{statusBody: newStatusBody(text), Limit: name}
	}
	return limitBody{Detail: text, Limit: name}
}

// refusal is an error that has its own status and words in the contract. The
// endpoint's shape applies when body is nil.
type refusal struct {
	status int
	text   string
	body   any
	// retryAfter, when positive, becomes the Retry-After header.
	retryAfter time.Duration
	// cause is for the log only.
	cause error
}

// Error implements error.
func (e *refusal) Error() string {
	if e.cause != nil {
		return e.text + ": " + e.cause.Error()
	}
	return e.text
}

// Unwrap gives the cause.
func (e *refusal) Unwrap() error { return e.cause }

// refuse makes a refusal in the {"detail"} shape whatever the endpoint's is.
func refuse(status int, text string) *refusal {
	return &refusal{status: status, text: text, body: detailBody{Detail: text}}
}

func errUnauthorized() *refusal { return refuse(http.StatusUnauthorized, "Unauthorized") }
func errNotFound() *refusal     { return refuse(http.StatusNotFound, "Not Found") }
func errTooManyRequests() *refusal {
	const text = "Too many requests"
	return &refusal{status: http.StatusTooManyRequests, text: text,
		body: messageBody{Message: text, Detail: text}, retryAfter: time.Second}
}

// row is what one error code means to a client.
type row struct {
	status int
	// text replaces the error's own words, which are then for the log only.
	text string
	// retryAfter is the default Retry-After.
	retryAfter time.Duration
}

// rowOf is the one table that turns codes into statuses. A code that is not in
// it is CodeInternal.
func rowOf(code fsm.Code) row {
	const soon = time.Second
	switch code {
	case fsm.CodeInvalid, fsm.CodeIdempotencyMismatch:
		return row{status: http.StatusUnprocessableEntity}
	case fsm.CodeUnauthorized:
		return row{status: http.StatusUnauthorized, text: "Unauthorized"}
	case fsm.CodeForbidden:
		return row{status: http.StatusForbidden}
	case fsm.CodeNotFound:
		return row{status: http.StatusNotFound}
	case fsm.CodeConflict:
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
		return row{http.StatusServiceUnavailable, "The secret store is unavailable; nothing was stored. Try again later.", 5 * soon}
	case fsm.CodeScheduler:
		return row{http.StatusServiceUnavailable, "The scheduler is unavailable. Try again later.", 5 * soon}
	case fsm.CodeProtocol:
		return row{http.StatusServiceUnavailable, "The cluster is being upgraded and can't do this yet. Try again later.", 10 * soon}
	case fsm.CodeShuttingDown:
		return row{http.StatusServiceUnavailable, "This node is stopping. Try another one.", soon}
	case fsm.CodeTimeout:
		return row{http.StatusServiceUnavailable, "This took too long; nothing was done. Try again.", soon}
	}
	return row{status: http.StatusInternalServerError, text: "Internal Server Error"}
}

// failure is an error on its way to the client.
type failure struct {
	status     int
	body       any
	retryAfter time.Duration
	challenge  bool
}

// failureOf turns any error into status, headers and body. internal is what the
// endpoint says instead of "Internal Server Error" (seldom anything).
func failureOf(err error, s shape, internal string) failure {
	var fields *problems
	if errors.As(err, &fields) {
		return failure{status: http.StatusUnprocessableEntity, body: detailBody{Detail: fields.list}}
	}
	var own *refusal
	if errors.As(err, &own) {
		f := failure{status: own.status, body: own.body, retryAfter: own.retryAfter}
		if f.body == nil {
			f.body = s.body(own.text)
		}
		f.challenge = own.status == http.StatusUnauthorized && own.text == "Unauthorized"
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

func codedFailure(e *fsm.Error, s shape, internal string) failure {
	r := rowOf(e.Code)
	f := failure{status: r.status, retryAfter: r.retryAfter}
	if e.RetryAfter > 0 {
		f.retryAfter = e.RetryAfter
	}
	text := r.text
	switch {
	case text == "":
		text = e.Message
	case r.status == http.StatusInternalServerError && internal != "":
		text = internal
	}
	switch e.Code {
	case fsm.CodeInvalid:
		f.body = detailBody{Detail: ruleProblem([]string{"body"}, text)}
	case fsm.CodeIdempotencyMismatch:
		f.body = detailBody{Detail: ruleProblem([]string{"header", headerIdempotencyKey},
			"this Idempotency-Key was used before with another request")}
	case fsm.CodeUnauthorized:
		f.body, f.challenge = detailBody{Detail: text}, true
	case fsm.CodeLimit:
		f.body = s.limit(text, e.Limit)
	default:
		f.body = s.body(text)
	}
	return f
}

// ruleProblem words a broken rule that was found behind the shape checks as a
// validation error.
func ruleProblem(loc []string, text string) []problem {
	var p problems
	p.value(loc, text, nil)
	return p.list
}

// write sends the failure.
func (f failure) write(w http.ResponseWriter) {
	if f.retryAfter > 0 {
		seconds := int(math.Ceil(f.retryAfter.Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	if f.challenge {
		w.Header().Set("WWW-Authenticate", `Bearer realm="bivouac"`)
	}
	body, err := encodeJSON(f.body)
	if err != nil {
		body = []byte(`{"detail":"Internal Server Error"}`)
		f.status = http.StatusInternalServerError
	}
	writeJSON(w, f.status, body)
}

// notFoundAs gives a CodeNotFound error the words of the contract.
func notFoundAs(err error, text string) error {
	if fsm.CodeOf(err) == fsm.CodeNotFound {
		return refuse(http.StatusNotFound, text)
	}
	return err
}
