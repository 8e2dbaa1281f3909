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

// Store stores secrets. Vault and Sealed implement it. All methods are safe for concurrent use.
type Store interface {
	Reader
	Writer
	Collector
	Marks
}

// Reader reads secrets.
type Reader interface {
	// Read returns exactly that version. created, unless zero, is the time that Write returned with
	// it. ErrNotFound: the version never existed, is destroyed, or was written at another time
	// (ReusedError). ErrDeleted, together with ErrNotFound: Collect deleted it.
	Read(ctx context.Context, path string, version int, created time.Time) (map[string]string, error)
	// Newest returns the number of the newest version at path that is not destroyed, 0 for none.
	Newest(ctx context.Context, path string) (int, error)
	// Health returns nil when reading and writing should work now, otherwise an error that says what
	// is wrong.
	Health(ctx context.Context) error
}

// Writer makes the changes that an owner of secrets requests.
type Writer interface {
	// Write stores data as a new version of the entry at path. Its number is at least 1 and higher
	// than every earlier number of that path. Two concurrent writes get two versions. httpapi and the
	// scheduler call it before they propose the command that refers to the version. A birth that is
	// not zero is stored with the version.
	Write(ctx context.Context, path string, data map[string]string, birth Birth) (Version, error)
	// Delete destroys every version at path. There need not be any. It does not destroy a concurrent
	// write.
	Delete(ctx context.Context, path string) error
	// Undelete makes a version readable again that Collect deleted. It returns ErrNotFound when the
	// version never existed or is destroyed.
	Undelete(ctx context.Context, path string, version int) error
}

// Collector removes unreferenced versions.
type Collector interface {
	// Collect asks judge about every version older than the grace period and acts on its verdict. The
	// leader calls it with a view of the FSM taken just before; birth is that view's. judge is called
	// by one goroutine at a time. After an error the next pass does the rest.
	Collect(ctx context.Context, birth Birth, judge func(Entry) Verdict) (Collected, error)
}

// Version identifies what Write stored.
type Version struct {
	Number int
	// Created is when the store wrote it, by the store's clock.
	Created time.Time
}

// The errors that callers distinguish, with errors.Is.
var (
	// ErrUnavailable: Vault is sealed, or the store is unreachable, too busy or refuses access. The
	// same call may succeed later.
	ErrUnavailable = errors.New("secret store unavailable")
	// ErrNotFound: there is no such version.
	ErrNotFound = errors.New("no such secret")
	// ErrDeleted: Collect deleted the version, and Undelete restores it. It comes with ErrNotFound.
	ErrDeleted = errors.New("deleted as unreferenced, not yet destroyed; undelete it")
	// ErrInvalid: the path or the data break a rule. A retry does not help.
	ErrInvalid = errors.New("invalid secret")
	// ErrFull: another version would push out one that is in use, or that a backup names.
	ErrFull = errors.New("the secret has no room for another version")
	// ErrConflict: another process wrote the mark since it was read.
	ErrConflict = errors.New("the mark was written by somebody else meanwhile")
)

// ReusedError says that a version's number was assigned twice: the store was rolled back, and its
// version is not the one the reference means. errors.Is matches ErrNotFound.
type ReusedError struct {
	// Found is when the existing version was written, Meant when the requested one was.
	Found, Meant time.Time
}

// Error implements error.
func (e *ReusedError) Error() string {
	return fmt.Sprintf("the secret store has another version of that number, written at %s, not at %s: "+
		"its data were rolled back; enter the secret again", e.Found.UTC().Format(time.RFC3339Nano),
		e.Meant.UTC().Format(time.RFC3339Nano))
}

// Is implements errors.Is.
func (e *ReusedError) Is(target error) bool { return target == ErrNotFound }

// DefaultGrace is how old an unreferenced version must be before Collect deletes it. The leader
// refuses commands that are more than a minute old, so an older version without a reference will
// never get one.
const DefaultGrace = 15 * time.Minute

// DefaultRetention is how long a deleted version can be undeleted before Collect destroys it.
const DefaultRetention = 168 * time.Hour

// Bounds of an entry.
const (
	// MaxDataBytes bounds the data of one version, as JSON: half of what Vault's storage takes.
	MaxDataBytes = 512 << 10
	// MaxPathBytes bounds a path.
	MaxPathBytes = 512
)

// pathPattern: at least two segments of characters without a meaning in a URL, a Vault policy or a
// template. checkPath also refuses segments that consist of dots.
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

// checkWrite checks the arguments of Write.
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

// checkRead checks the arguments of Read.
func checkRead(path string, version int) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if version < 1 {
		return fmt.Errorf("%w: %s version %d", ErrInvalid, path, version)
	}
	return nil
}
