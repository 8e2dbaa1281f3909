package secrets

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hashicorp/vault/api"
)

// errSealed and errUnreachable are ErrUnavailable too.
var (
	errSealed      = fmt.Errorf("%w: vault is sealed", ErrUnavailable)
	errUnreachable = fmt.Errorf("%w: vault is not reachable", ErrUnavailable)
)

// unavailable returns an ErrUnavailable with a reason.
func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnavailable, fmt.Sprintf(format, args...))
}

// explain converts an error of the api package to one of this package. It includes the server's
// text only where that can't hold anything that was sent.
func explain(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrInvalid) ||
		errors.Is(err, ErrConflict) {
		return err
	}
	if errors.Is(err, api.ErrSecretNotFound) {
		return ErrNotFound
	}
	if errors.Is(err, ErrFull) {
		return err
	}
	var resp *api.ResponseError
	if !errors.As(err, &resp) {
		// No response: refused, cut off, timed out, or the caller cancelled. The text holds at most the
		// method and the URL.
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	said := strings.Join(resp.Errors, "; ")
	switch {
	case resp.StatusCode == http.StatusNotFound && said == "":
		return ErrNotFound
	case resp.StatusCode == http.StatusNotFound:
		return unavailable("vault has no KV version 2 where it should be: %.200s", said)
	case resp.StatusCode == http.StatusForbidden:
		return denied(resp)
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(said, "Upgrading"):
		return unavailable("vault's KV mount is being upgraded")
	case resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(said, "sealed"):
		return errSealed
	case retryable(resp.StatusCode):
		return unavailable("vault answered %d: %.200s", resp.StatusCode, said)
	case resp.StatusCode == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: vault takes no more than it allows (413)", ErrInvalid)
	}
	return fmt.Errorf("vault refused the request (%d)", resp.StatusCode)
}

// retryable: the request was valid and may succeed later. It covers a standby without a leader, a
// replica that is behind (412), a quota (429) and a failing Vault.
func retryable(status int) bool {
	return status == http.StatusPreconditionFailed || status == http.StatusTooManyRequests || status >= 472
}

// isDenied: 403, which a revoked token gets too.
func isDenied(err error) bool {
	var resp *api.ResponseError
	return errors.As(err, &resp) && resp.StatusCode == http.StatusForbidden
}

// isConflict: another version was written since the last read.
func isConflict(err error) bool {
	var resp *api.ResponseError
	return errors.As(err, &resp) && resp.StatusCode == http.StatusBadRequest &&
		strings.Contains(strings.Join(resp.Errors, " "), "check-and-set")
}

// DeniedError says that the AppRole's policy lacks a capability. errors.Is matches ErrUnavailable.
type DeniedError struct {
	// Capability is a capability of a policy, or "create or update". Path is where it is missing.
	Capability, Path string
}

// Error implements error.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("vault denies %s on %s: the AppRole's policy must allow it (deploy/vault/bivouac.hcl)",
		e.Capability, e.Path)
}

// Is implements errors.Is.
func (e *DeniedError) Is(target error) bool { return target == ErrUnavailable }

// denied derives from a 403 which capability is missing on which path. The path holds no value.
func denied(resp *api.ResponseError) error {
	at, err := url.Parse(resp.URL)
	if err != nil {
		return unavailable("vault denies it; the AppRole's policy must be deploy/vault/bivouac.hcl")
	}
	capability := map[string]string{
		http.MethodGet: "read", http.MethodDelete: "delete", http.MethodPatch: "patch",
		http.MethodPost: "create or update", http.MethodPut: "create or update",
	}[resp.HTTPMethod]
	if at.Query().Get("list") == "true" {
		capability = "list"
	}
	return &DeniedError{Capability: capability, Path: strings.TrimPrefix(at.Path, "/v1/")}
}
