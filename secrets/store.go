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
	Reader
	Writer
	Collector
	Marks
}

// Reader reads secrets.
type Reader interface {
	// Read gives exactly that version. created, unless it is zero, is the time
	// that Write returned with it: a version of the same number that was written
	// at another time is ErrNotFound. ErrNotFound is also a version that never
	// was or is destroyed; one that Collect deleted is ErrDeleted as well.
	Read(ctx context.Context, path string, version int, created time.Time) (map[string]string, error)
	// Newest is the number of the newest version at path that is not destroyed, 0
	// for none.
	Newest(ctx context.Context, path string) (int, error)
	// Health is nil when reading and writing can work now; otherwise its text
	// says what is the matter.
	Health(ctx context.Context) error
}

// Writer changes what its owner asked to change.
type Writer interface {
	// Write stores data as a new version of the entry at path. Its number is
	// from 1, and higher than every number of that path before. Two writers at
	// once get two versions. httpapi and the scheduler call it before they
	// propose the command that refers to the version. birth is kept with the
	// version; the zero one is not.
	Write(ctx context.Context, path string, data map[string]string, birth Birth) (Version, error)
	// Delete destroys every version there is at path; there need be none. A
	// write at the same time is not lost.
	Delete(ctx context.Context, path string) error
	// Undelete makes a version readable again that Collect deleted. It is
	// ErrNotFound when the version never was or is destroyed.
	Undelete(ctx context.Context, path string, version int) error
}

// Collector removes what nobody refers to.
type Collector interface {
	// Collect asks judge about every version that is older than the grace period
	// and acts on its verdict. The leader calls it, with a view of the FSM taken
	// just before; birth is that view's. judge is called from one goroutine at a
	// time. After an error the rest is left for the next time.
	Collect(ctx context.Context, birth Birth, judge func(Entry) Verdict) (Collected, error)
}

// Version names what Write stored.
type Version struct {
	Number int
	// Created is when the store wrote it, by the store's clock.
	Created time.Time
}

// The errors callers tell apart, with errors.Is.
var (
	// ErrUnavailable: the store is sealed, away, too busy or refuses us. The
	// same call may work later.
	ErrUnavailable = errors.New("secret store unavailable")
	// ErrNotFound: there is no such version.
	ErrNotFound = errors.New("no such secret")
	// ErrDeleted: Collect deleted the version, and Undelete brings it back. It
	// comes with ErrNotFound.
	ErrDeleted = errors.New("deleted as unreferenced, not yet destroyed; undelete it")
	// ErrInvalid: the path or the data break the rules; trying again is no use.
	ErrInvalid = errors.New("invalid secret")
	// ErrConflict: somebody else wrote the mark since it was read.
	ErrConflict = errors.New("the mark was written by somebody else meanwhile")
)

// ReusedError says that a version's number was given out twice: the store was
// rolled back, and what it holds is not what was meant. It is ErrNotFound.
type ReusedError struct {
	// Found and Meant are when the version was written that is there, and the one
	// that was meant.
	Found, Meant time.Time
}

// Error implements error.
func (e *ReusedError) Error() string {
	return fmt.Sprintf("the secret store has another version of that number, written at %s, not at %s: "+
		"its data were rolled back; enter the secret again", e.Found.UTC().Format(time.RFC3339Nano), e.Meant.UTC().Format(time.RFC3339Nano))
}

// Is implements errors.Is.
func (e *ReusedError) Is(target error) bool { return target == ErrNotFound }

// DefaultGrace is how old an unreferenced version must be before Collect takes
// it. A command is refused once it is a minute old, so what is older than this
// and has no reference will never have one.
const DefaultGrace = 15 * time.Minute

// DefaultRetention is how long a deleted version can still be undeleted before
// Collect destroys it.
const DefaultRetention = 168 * time.Hour

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
func checkWrite(path string, data map[string]string, birth Birth) error {
	if err := errors.Join(checkPath(path), checkBirth(birth)); err != nil {
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
