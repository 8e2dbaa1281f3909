package fsm

import (
	"bytes"
	"encoding/base64"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"
)

// View is the read-only state at one log index. It is cheap to get, does not change when the store
// does, and is safe for concurrent use. What its methods return is shared with other Views, and
// callers must not change it. A row that does not exist is nil, never an error.
type View struct {
	index    uint64
	meta     meta
	txn      *memdb.Txn
	epoch    *epoch
	commands *commandWindow
	// visited is the store's, nil for the view of a transaction.
	visited *atomic.Uint64
	// keys is not part of the state; see KeysRevoked.
	keys uint64
}

// Rows returns the number of rows of each table.
func (v *View) Rows() map[string]int {
	rows := map[string]int{}
	for name := range schema().Tables {
		rows[name] = 0
		found, err := v.txn.Get(name, indexID+"_prefix", []byte(nil))
		must(err)
		for found.Next() != nil {
			rows[name]++
		}
	}
	return rows
}

// Index returns the Raft log index of the view.
func (v *View) Index() uint64 { return v.index }

// KeysRevoked returns the log index at which an API key may last have been revoked, suspended or
// disabled, a user disabled, or a session ended, as far as this process knows.
func (v *View) KeysRevoked() uint64 { return v.keys }

// ClusterID returns the id that labels the cluster's things in Nomad, "" before the first term.
func (v *View) ClusterID() string { return v.meta.ClusterID }

// ProtocolVersion returns the cluster's protocol version.
func (v *View) ProtocolVersion() int { return v.meta.ProtocolVersion }

// CommandResult returns the outcome of the command with an id. found is false for an id that never
// ran or ran too long ago. result.Replayed is set, as for a repeated command.
func (v *View) CommandResult(id string) (result Result, err *Error, fingerprint string, found bool) {
	return v.resultOf(id, func(*commandRecord) bool { return true })
}

// resultOf is CommandResult with a condition, kept, for a client's command.
func (v *View) resultOf(
	id string,
	kept func(*commandRecord) bool,
) (result Result, err *Error, fingerprint string, found bool) {
	r := v.commands.get(id)
	if r == nil {
		if r = first[commandRecord](v.txn, tableClientCommands, indexID, []byte(id)); r != nil && !kept(r) {
			r = nil
		}
	}
	// The window is not part of the view and may be ahead of it.
	if r == nil || r.Result.Index > v.index {
		return Result{}, nil, "", false
	}
	result = r.Result.whole(v.txn)
	result.Replayed = true
	return result, r.Err, r.Fingerprint, true
}

// CommandResultAt is CommandResult for a client's command at the time now. It does not find a
// command that is older than ClientResultTTL, like Apply.
func (v *View) CommandResultAt(id string, now time.Time) (result Result, err *Error, fingerprint string, found bool) {
	return v.resultOf(id, func(r *commandRecord) bool { return !r.expired(now) })
}

// SecretReferenced reports whether any row (settings, providers, custom
// secrets, sandboxes, open start tasks) holds this version of a secret.
func (v *View) SecretReferenced(path string, version int) bool {
	return first[secretRef](v.txn, tableSecretRefs, indexID, refKey(SecretRef{Path: path, Version: version})) != nil
}

// SecretRef returns the reference that rows hold to this version of a secret.
func (v *View) SecretRef(path string, version int) (SecretRef, bool) {
	row := first[secretRef](v.txn, tableSecretRefs, indexID, refKey(SecretRef{Path: path, Version: version}))
	if row == nil {
		return SecretRef{}, false
	}
	return row.ref, true
}

// DefaultPageLimit is the length of a page when Page.Limit is not positive.
const DefaultPageLimit = 100

// Page asks for one page of a listing.
type Page struct {
	// After is the token from the previous page. "" or an invalid token starts at the beginning.
	After string
	// Limit is the most rows to return; not positive means DefaultPageLimit.
	Limit int
}

// limit returns the length of the page.
func (p Page) limit() int {
	if p.Limit <= 0 {
		return DefaultPageLimit
	}
	return p.Limit
}

// key decodes the token: the part of the last row's key after the user, so that a token can't lead
// into another user's rows. nil is the start.
func (p Page) key() []byte {
	k, err := base64.RawURLEncoding.DecodeString(p.After)
	if err != nil || len(k) <= 8 || len(k) > 8+maxID {
		return nil
	}
	return k
}

// token is the inverse of Page.key.
func token(key []byte) string { return base64.RawURLEncoding.EncodeToString(key) }

// page reads one page of a user's rows from an index whose keys start with the user. It seeks, so
// every page costs the same. mine reports whether a row is still the user's. takes filters; nil
// selects all.
func page[T any](
	txn *memdb.Txn,
	table, index, userID string,
	p Page,
	mine, takes func(*T) bool,
	key func(*T) []byte,
) ([]*T, string) {
	start := append(prefixOf(userID), p.key()...)
	rows := []*T{}
	seeking := p.After != ""
	for row := range from[T](txn, table, index, start) {
		if !mine(row) {
			break
		}
		// Only the first row can be the one that the token names.
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

// collect is slices.Collect that never returns nil.
func collect[T any](rows iter.Seq[T]) []T {
	return slices.AppendSeq([]T{}, rows)
}
