package fsm

import (
	"errors"
	"fmt"
	"time"
)

// Code is the kind of failure of an Error. Codes travel between nodes as data. Other packages
// branch on nothing else; httpapi/response/errors.go maps them to HTTP statuses.
type Code string

// The codes. A new code needs a row in httpapi/response/errors.go.
const (
	// CodeInvalid: the request breaks a rule of one object (422).
	CodeInvalid Code = "invalid"
	// CodeUnauthorized: no key, an unknown one or a revoked one (401).
	CodeUnauthorized Code = "unauthorized"
	// CodeForbidden: the key is valid but does not allow this (403).
	CodeForbidden Code = "forbidden"
	// CodeNotFound: no such object, or another user's (404).
	CodeNotFound Code = "not_found"
	// CodeConflict: the object's state does not allow it (409).
	CodeConflict Code = "conflict"
	// CodeLimit: a limit of the user or the installation is reached. Nothing was done. Error.Limit
	// names the limit (429).
	CodeLimit Code = "limit"
	// CodePoolEmpty: no member of a warm pool is available. Nothing was done. The caller makes a cold
	// start instead, so no client sees it (503).
	CodePoolEmpty Code = "pool_empty"
	// CodeIdempotencyMismatch: an Idempotency-Key was reused with another request (422).
	CodeIdempotencyMismatch Code = "idempotency_mismatch"
	// CodeNoLeader: there was no leader within the waiting time. Nothing was done (503).
	CodeNoLeader Code = "no_leader"
	// CodeOutcomeUnknown: the command was sent, its outcome is unknown, and it may still apply (503).
	// Repeating it with the same id is safe.
	CodeOutcomeUnknown Code = "outcome_unknown"
	// CodeSecretStore: Vault is sealed or the secret store can't be reached. Nothing was stored (503).
	CodeSecretStore Code = "secret_store_unavailable"
	// CodeNoRoom: a disk of the cluster has no room for what is optional. Nothing was done (503).
	CodeNoRoom Code = "no_room"
	// CodeScheduler: Nomad can't be reached or refused (503).
	CodeScheduler Code = "scheduler_unavailable"
	// CodeProtocol: the cluster's protocol version is too low for this (409).
	CodeProtocol Code = "protocol_version"
	// CodeShuttingDown: this node is stopping (503).
	CodeShuttingDown Code = "shutting_down"
	// CodeTimeout: the caller's deadline passed before anything was done (503).
	CodeTimeout Code = "timeout"
	// CodeInternal: anything else (500). Clients do not see the message.
	CodeInternal Code = "internal"
)

// Error is the only error type that crosses packages and nodes.
type Error struct {
	Code Code `json:"code"`
	// Message says what was wrong and what to do. It never holds a secret.
	Message string `json:"message"`
	// RetryAfter, when positive, is how long the client should wait before it retries.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Limit names the limit of a CodeLimit: LimitOfUser or LimitOfInstallation followed by one of the
	// Limit constants, as in "user_running_sandboxes".
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

// CodeOf returns the code of the first *Error in err's chain, "" for nil and CodeInternal for any
// other error.
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
