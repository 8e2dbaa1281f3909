package secrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Store keeps secrets. Vault and Sealed implement it. Every method may be
// called from any goroutine.
type Store interface {
	// Write stores data as a new version of the entry at path and returns its
	// number, from 1, higher than every number of that path before. Two writers
	// at once get two versions. httpapi and the scheduler call it before they
	// propose the command that refers to the version.
	Write(ctx context.Context, path string, data map[string]string) (version int, err error)
	// Read gives exactly that version. It is ErrNotFound when the version never
	// was or is destroyed.
	Read(ctx context.Context, path string, version int) (map[string]string, error)
	// Delete destroys every version there is at path; there need be none. A
	// write at the same time is not lost.
	Delete(ctx context.Context, path string) error
	// Collect destroys every version that live does not hold and that is older
	// than the grace period, and reports how many. The leader calls it, with a
	// view of the FSM taken just before. live is called from one goroutine at a
	// time. After an error the rest is left for the next time.
	Collect(ctx context.Context, live func(path string, version int) bool) (destroyed int, err error)
	// Health is nil when reading and writing can work now; otherwise its text
	// says what is the matter.
	Health(ctx context.Context) error
}

// The errors callers tell apart, with errors.Is.
var (
	// ErrUnavailable: the store is sealed, away, too busy or refuses us. The
	// same call may work later.
	ErrUnavailable = errors.New("secret store unavailable")
	// ErrNotFound: there is no such version.
	ErrNotFound = errors.New("no such secret")
	// ErrInvalid: the path or the data break the rules; trying again is no use.
	ErrInvalid = errors.New("invalid secret")
)

// DefaultGrace is how old an unreferenced version must be before Collect takes
// it. A command is refused once it is a minute old, so what is older than this
// and has no reference will never have one.
const DefaultGrace = 15 * time.Minute

// Bounds of an entry.
const (
	// MaxDataBytes bounds the data of one version, as JSON: half of what Vault's
	// storage takes.
	MaxDataBytes = 512 << 10
	// MaxPathBytes bounds a path.
	MaxPathBytes = 512
)

// pathPattern: at least two segments of characters that mean nothing in a URL,
// a Vault policy or a template. Segments of dots alone are refused besides.
var pathPattern = regexp.MustCompile(`^[A-Za-z0-9._@=-]+(/[A-Za-z0-9._@=-]+){1,7}$`)

// checkPath checks a logical path such as "users/<user>/settings/llm_api_key"
// or "sandboxes/<sandbox>/session".
func checkPath(path string) error {
	if len(path) > MaxPathBytes || !pathPattern.MatchString(path) {
		return fmt.Errorf("%w: path %.80q", ErrInvalid, path)
	}
	for _, segment := range strings.Split(path, "/") {
		if strings.Trim(segment, ".") == "" {
			return fmt.Errorf("%w: path %.80q", ErrInvalid, path)
		}
	}
	return nil
}

// checkWrite checks what Write was given.
func checkWrite(path string, data map[string]string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if len(data) == 0 {
		return fmt.Errorf("%w: %s without any data", ErrInvalid, path)
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("%w: %s is not text", ErrInvalid, path)
	}
	if len(raw) > MaxDataBytes {
		return fmt.Errorf("%w: %s has %d bytes, more than %d", ErrInvalid, path, len(raw), MaxDataBytes)
	}
	return nil
}

// checkRead checks what Read was given.
func checkRead(path string, version int) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if version < 1 {
		return fmt.Errorf("%w: %s version %d", ErrInvalid, path, version)
	}
	return nil
}
