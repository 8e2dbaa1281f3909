package fsm

import (
	"encoding/binary"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/hashicorp/go-memdb"
)

// The tables. Rows are pointers and are never changed once stored.
const (
	tableUsers          = "users"
	tableAPIKeys        = "api_keys"
	tableSettings       = "settings"
	tableProviders      = "providers"
	tableCustomSecrets  = "custom_secrets"
	tableSpecs          = "specs"
	tableSandboxes      = "sandboxes"
	tableConversations  = "conversations"
	tableStartTasks     = "start_tasks"
	tableClientCommands = "client_commands"
	tableRecentStarts   = "recent_starts"
	tableOrphans        = "orphans"
	tableReplaced       = "replaced_secrets"
	tableSetups         = "project_setups"
	tableProfiles       = "profiles"
	tableSessions       = "sessions"
	tableSignInCodes    = "sign_in_codes"
	tableDevices        = "devices"
	// Derived: tableSecretRefs counts the rows that hold each ref, tableUsage the usage that limits
	// bound.
	tableSecretRefs = "secret_refs"
	tableUsage      = "usage"
)

// The indexes. Every index is unique: if a key alone would not be, it ends with the row's id. That
// also gives listings a total order.
const (
	indexID           = "id"
	indexLookup       = "lookup"
	indexPosition     = "position"
	indexCreated      = "created"
	indexKeyHash      = "key_hash"
	indexV0           = "v0"
	indexParent       = "parent"
	indexOpen         = "open"
	indexDone         = "done"
	indexConversation = "conversation"
	indexRunning      = "running"
	indexPool         = "pool"
	indexSandbox      = "sandbox"
	indexUser         = "user"
	indexTime         = "time"
	indexValid        = "valid"
)

// schema describes every table. An index can be added to a released table at any time, because a
// restore rebuilds the indexes from the rows.
func schema() *memdb.DBSchema {
	tables := []*memdb.TableSchema{
		userTable(), apiKeyTable(), settingsTable(), providerTable(), customSecretTable(), specTable(),
		sandboxTable(), conversationTable(), startTaskTable(), clientCommandTable(), secretRefTable(),
		recentStartTable(), usageTable(), orphanTable(), replacedTable(), setupTable(), profileTable(),
		sessionTable(), signInCodeTable(), deviceTable(),
	}
	s := &memdb.DBSchema{Tables: make(map[string]*memdb.TableSchema, len(tables))}
	for _, t := range tables {
		s.Tables[t.Name] = t
	}
	return s
}

// newDB returns an empty database. It returns a snapshot, because writes to one skip go-memdb's
// watch bookkeeping, which View.Changed replaces.
func newDB() *memdb.MemDB {
	db, err := memdb.NewMemDB(schema())
	if err != nil {
		panic(fmt.Sprintf("fsm: the schema is invalid: %v", err))
	}
	return db.Snapshot()
}

// newTable builds a table from its indexes; "id" must be among them.
func newTable(name string, indexes ...*memdb.IndexSchema) *memdb.TableSchema {
	t := &memdb.TableSchema{Name: name, Indexes: make(map[string]*memdb.IndexSchema, len(indexes))}
	for _, x := range indexes {
		t.Indexes[x.Name] = x
	}
	return t
}

// newIndex builds an index from a key function. A nil key leaves the row out of
// the index.
func newIndex[T any](name string, key func(*T) []byte) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: name, Unique: true, AllowMissing: name != indexID, Indexer: keyIndexer[T]{key}}
}

// keyIndexer implements memdb.SingleIndexer and memdb.PrefixIndexer with keys that are already
// built.
type keyIndexer[T any] struct{ key func(*T) []byte }

// FromObject implements memdb.SingleIndexer.
func (x keyIndexer[T]) FromObject(obj any) (bool, []byte, error) {
	k := x.key(obj.(*T))
	return k != nil, k, nil
}

// FromArgs implements memdb.Indexer: the one argument is the key.
func (x keyIndexer[T]) FromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }

// PrefixFromArgs implements memdb.PrefixIndexer.
func (x keyIndexer[T]) PrefixFromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }

// first returns the row under an exact key, nil when there is none.
func first[T any](txn *memdb.Txn, table, index string, key []byte) *T {
	raw, err := txn.First(table, index, key)
	must(err)
	row, _ := raw.(*T)
	return row
}

// withPrefix iterates the rows whose key starts with prefix, in key order.
func withPrefix[T any](txn *memdb.Txn, table, index string, prefix []byte) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		it, err := txn.Get(table, index+"_prefix", prefix)
		must(err)
		for raw := it.Next(); raw != nil; raw = it.Next() {
			if !yield(raw.(*T)) {
				return
			}
		}
	}
}

// firstWithPrefix returns the first row whose key starts with prefix, nil when
// there is none.
func firstWithPrefix[T any](txn *memdb.Txn, table, index string, prefix []byte) *T {
	for row := range withPrefix[T](txn, table, index, prefix) {
		return row
	}
	return nil
}

// from iterates the rows from key on, in key order, to the end of the table.
func from[T any](txn *memdb.Txn, table, index string, key []byte) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		it, err := txn.LowerBound(table, index, key)
		must(err)
		for raw := it.Next(); raw != nil; raw = it.Next() {
			if !yield(raw.(*T)) {
				return
			}
		}
	}
}

// must panics on an error that only a bug in this package can cause (an index name, a key
// function).
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("fsm: impossible state: %v", err))
	}
}

// keyOf joins parts with NUL, which validation keeps out of every part but the
// last.
func keyOf(parts ...string) []byte {
	n := len(parts)
	for _, p := range parts {
		n += len(p)
	}
	k := make([]byte, 0, n)
	for i, p := range parts {
		if i > 0 {
			k = append(k, 0)
		}
		k = append(k, p...)
	}
	return k
}

// prefixOf is keyOf with a closing NUL: the prefix of all keys with more parts.
func prefixOf(parts ...string) []byte { return append(keyOf(parts...), 0) }

// appendTime appends a time so that keys sort oldest first.
func appendTime(k []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(k, uint64(t.UnixMicro())^(1<<63))
}

// appendTimeDesc appends a time so that keys sort newest first.
func appendTimeDesc(k []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(k, ^(uint64(t.UnixMicro()) ^ (1 << 63)))
}

// newestKey orders one user's rows newest first, ties by id.
func newestKey(userID string, created time.Time, id string) []byte {
	k := make([]byte, 0, len(userID)+1+8+len(id))
	k = append(append(k, userID...), 0)
	return append(appendTimeDesc(k, created), id...)
}

// intKey orders non-negative integers.
func intKey(n int) []byte {
	if n < 0 {
		n = 0
	}
	return binary.BigEndian.AppendUint64(nil, uint64(n))
}

// refKey is the key of a SecretRef.
func refKey(r SecretRef) []byte {
	k := make([]byte, 0, len(r.Path)+9)
	k = append(append(k, r.Path...), 0)
	return binary.BigEndian.AppendUint64(k, uint64(r.Version))
}

// secretRef is a row of tableSecretRefs.
type secretRef struct {
	ref   SecretRef
	count int
}

func secretRefTable() *memdb.TableSchema {
	return newTable(tableSecretRefs, newIndex(indexID, func(r *secretRef) []byte { return refKey(r.ref) }))
}

// containsFold reports whether s contains substr, ignoring case.
func containsFold(s, substr string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(substr))
}
