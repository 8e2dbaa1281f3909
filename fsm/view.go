package fsm

import (
	"bytes"
	"encoding/base64"
	"iter"
	"slices"
	"time"

	"github.com/hashicorp/go-memdb"
)

// View is a read-only picture of the state at one log index. It is cheap to
// get, stays as it is while the store moves on, and is safe for concurrent use.
// What its methods return is shared with every other View and must not be
// changed. A row that does not exist is nil, never an error.
type View struct {
	index    uint64
	meta     meta
	txn      *memdb.Txn
	changed  chan struct{}
	commands *commandWindow
	// keys is not part of the state: see KeysRevoked.
	keys uint64
}

// Index is the Raft log index the picture was taken at.
func (v *View) Index() uint64 { return v.index }

// Changed returns a channel that is closed as soon as anything the scheduler
// or the proxies care for (sandboxes, start tasks, specs, policies, revocations) is
// no longer as in this View. A sandbox's LastActive alone does not count: it only moves deadlines
// away.
func (v *View) Changed() <-chan struct{} { return v.changed }

// KeysRevoked is the log index at which an API key may last have been revoked or
// suspended, as far as this process knows.
func (v *View) KeysRevoked() uint64 { return v.keys }

// ClusterID marks what is ours in Nomad; "" before the first term opened.
func (v *View) ClusterID() string { return v.meta.ClusterID }

// ProtocolVersion is the replicated protocol version.
func (v *View) ProtocolVersion() int { return v.meta.ProtocolVersion }

// CommandResult answers what the command of an id came to. found is false for
// an id that never ran, or ran too long ago. Exactly as in the answer to a
// repeated command, result.Replayed is set.
func (v *View) CommandResult(id string) (result Result, err *Error, fingerprint string, found bool) {
	r := v.commands.get(id)
	if r == nil {
		r = first[commandRecord](v.txn, tableClientCommands, indexID, []byte(id))
	}
	// The window is not part of the picture and may be ahead of it.
	if r == nil || r.Result.Index > v.index {
		return Result{}, nil, "", false
	}
	result = r.Result.whole(v.txn)
	result.Replayed = true
	return result, r.Err, r.Fingerprint, true
}

// CommandResultAt is CommandResult for a command of a client at the time now: what
// is older than the promise of the Idempotency-Key is not found, as in Apply.
func (v *View) CommandResultAt(id string, now time.Time) (result Result, err *Error, fingerprint string, found bool) {
	r := first[commandRecord](v.txn, tableClientCommands, indexID, []byte(id))
	if r != nil && v.commands.get(id) == nil && now.Sub(r.Time) > ClientResultTTL {
		return Result{}, nil, "", false
	}
	return v.CommandResult(id)
}

// SecretReferenced reports whether any row (settings, providers, custom
// secrets, sandboxes, open start tasks) holds this version of a secret.
func (v *View) SecretReferenced(path string, version int) bool {
	return first[secretRef](v.txn, tableSecretRefs, indexID, refKey(SecretRef{Path: path, Version: version})) != nil
}

// SecretRef gives the reference that rows hold to this version of a secret.
func (v *View) SecretRef(path string, version int) (SecretRef, bool) {
	row := first[secretRef](v.txn, tableSecretRefs, indexID, refKey(SecretRef{Path: path, Version: version}))
	if row == nil {
		return SecretRef{}, false
	}
	return row.ref, true
}

// DefaultPageLimit is the length of a page whose Page.Limit is not positive.
const DefaultPageLimit = 100

// Page asks for one page of a listing.
type Page struct {
	// After is the token the page before gave; "" starts at the beginning, and
	// so does one that makes no sense.
	After string
	// Limit is the most rows to give; not positive means DefaultPageLimit.
	Limit int
}

// limit gives the length of the page.
func (p Page) limit() int {
	if p.Limit <= 0 {
		return DefaultPageLimit
	}
	return p.Limit
}

// key decodes the token: the part of the last row's key behind the user, so
// that a token can't lead into another user's rows. nil stands for the start.
func (p Page) key() []byte {
	k, err := base64.RawURLEncoding.DecodeString(p.After)
	if err != nil || len(k) <= 8 || len(k) > 8+maxID {
		return nil
	}
	return k
}

// token is the inverse of Page.key.
func token(key []byte) string { return base64.RawURLEncoding.EncodeToString(key) }

// page reads one page of a user's rows from an index whose keys start with
// the user. It seeks, so a late page costs what the first does. mine tells
// where the user's rows end; takes filters, nil takes all.
func page[T any](txn *memdb.Txn, table, index, userID string, p Page, mine, takes func(*T) bool, key func(*T) []byte) ([]*T, string) {
	start := append(prefixOf(userID), p.key()...)
	rows := []*T{}
	seeking := p.After != ""
	for row := range from[T](txn, table, index, start) {
		if !mine(row) {
			break
		}
		// The row the token names can only be the first.
		named := seeking && bytes.Equal(key(row), start)
		seeking = false
		if named || takes != nil && !takes(row) {
			continue
		}
		if len(rows) == p.limit() {
			return rows, token(key(rows[len(rows)-1])[len(userID)+1:])
		}
		rows = append(rows, row)
	}
	return rows, ""
}

// collect is slices.Collect that never gives nil.
func collect[T any](rows iter.Seq[T]) []T {
	return slices.AppendSeq([]T{}, rows)
}
