package fsm

import (
	"errors"
	"fmt"
	"time"
)

// Code says what kind of failure an Error is. Codes travel between nodes as
// data and are the only thing other packages branch on; httpapi/errors.go
// turns them into statuses.
type Code string

// The vocabulary. A new code needs a row in httpapi/errors.go.
const (
	// CodeInvalid: the request breaks a rule of one object (422).
	CodeInvalid Code = "invalid"
	// CodeUnauthorized: no key, an unknown or a revoked one (401).
	CodeUnauthorized Code = "unauthorized"
	// CodeForbidden: the key is good but not for this (403).
	CodeForbidden Code = "forbidden"
	// CodeNotFound: no such object, or another user's (404).
	CodeNotFound Code = "not_found"
	// CodeConflict: the object's state does not allow it (409).
	CodeConflict Code = "conflict"
	// CodeLimit: a limit of the user or the installation is reached; nothing
	// was done, and Error.Limit names it (429).
	CodeLimit Code = "limit"
	// CodePoolEmpty: no member of a warm pool can be had; nothing was done, and
	// whoever asked makes a cold start instead (503, though no client sees it).
	CodePoolEmpty Code = "pool_empty"
	// CodeIdempotencyMismatch: an Idempotency-Key came again with another
	// request (422).
	CodeIdempotencyMismatch Code = "idempotency_mismatch"
	// CodeNoLeader: no leader within the waiting time; nothing was done (503).
	CodeNoLeader Code = "no_leader"
	// CodeOutcomeUnknown: the command was sent on its way but its outcome is
	// not known; it may yet apply (503). Repeating it with the same id is safe.
	CodeOutcomeUnknown Code = "outcome_unknown"
	// CodeSecretStore: the secret store is sealed or away; nothing was stored
	// (503).
	CodeSecretStore Code = "secret_store_unavailable"
	// CodeScheduler: Nomad is away or refused (503).
	CodeScheduler Code = "scheduler_unavailable"
	// CodeProtocol: not every node knows this command yet (503).
	CodeProtocol Code = "protocol_version"
	// CodeShuttingDown: this node is stopping (503).
	CodeShuttingDown Code = "shutting_down"
	// CodeTimeout: the caller's time ran out before anything was done (503).
	CodeTimeout Code = "timeout"
	// CodeInternal: anything else; the message is not shown to clients (500).
	CodeInternal Code = "internal"
)

// Error is the one error type that crosses package and node borders.
type Error struct {
	Code Code `json:"code"`
	// Message is for the reader: what was wrong and what to do. Never a
	// secret.
	Message string `json:"message"`
	// RetryAfter, when positive, tells the client when to try again.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Limit names the limit behind CodeLimit: LimitOfUser or
	// LimitOfInstallation followed by one of the Limit constants, as in
	// "user_running_sandboxes".
	Limit string `json:"limit,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Is makes errors.Is(err, &Error{Code: c}) match on the code alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf gives the code of the first *Error in err's chain, "" for nil and
// CodeInternal for anything else.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}
