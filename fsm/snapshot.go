package fsm

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"

	"github.com/hashicorp/go-memdb"
)

// SnapshotFormat is the snapshot format that this binary writes. It reads every older one as well;
// testdata has a file of each.
//
// A snapshot is lines of JSON: a header with the format, the index and the state outside the
// tables; one line per row; a trailer with the number of rows, and the bytes and the SHA-256 of
// everything before it.
//
// Format 2 added the reservations of start tasks and the time up to which command ids are
// forgotten; a program that does not know them would apply commands differently. Format 3 added the
// history and orphans.
const SnapshotFormat = 3

// snapshotHeader is the first line of a snapshot.
type snapshotHeader struct {
	Format int    `json:"bivouac_snapshot"`
	Index  uint64 `json:"index"`
	Meta   meta   `json:"meta"`
}

// snapshotRow is every line except the first and the last.
type snapshotRow struct {
	Table string `json:"table"`
	Row   any    `json:"row"`
}

// snapshotTrailer is the last line. It has no table.
type snapshotTrailer struct {
	Rows   int    `json:"rows"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// tableInternalCommands names the rows of the command window in a snapshot.
const tableInternalCommands = "internal_commands"

// Snapshot is the whole state at one index, ready to be written. Later changes of the store do not
// affect it.
type Snapshot struct {
	view     *View
	commands []*commandRecord
	// Events are what the state's chains are of, at the same index; nil for none. Close closes them.
	Events SnapshotEvents
}

// SnapshotEvents are the events behind a Snapshot, for a file that has both.
type SnapshotEvents interface {
	// Write writes all that are there.
	Write(ctx context.Context, w io.Writer) (EventsWritten, error)
	Close() error
}

// EventsWritten says what SnapshotEvents wrote.
type EventsWritten struct {
	// Conversations, Number and Bytes count what was written.
	Conversations int    `json:"conversations"`
	Number        uint64 `json:"number"`
	Bytes         uint64 `json:"bytes"`
	// Missing is how many bytes the state has and the node that wrote lacks.
	Missing uint64 `json:"missing_bytes"`
}

// Close gives up what the snapshot holds beside the state.
func (p *Snapshot) Close() error {
	if p.Events == nil {
		return nil
	}
	return p.Events.Close()
}

// Snapshot captures the whole state, the command-id table included. It is fast enough to run
// between two Applies. Persist is the slow part and can run in parallel with them.
func (s *Store) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Snapshot{view: s.View(), commands: s.commands.all()}
}

// Index returns the Raft log index of the snapshot.
func (p *Snapshot) Index() uint64 { return p.view.index }

// Persist writes the snapshot. Equal states give equal bytes.
func (p *Snapshot) Persist(w io.Writer) error {
	sum := &summer{w: bufio.NewWriterSize(w, 1<<16), hash: sha256.New()}
	enc := json.NewEncoder(sum)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(snapshotHeader{SnapshotFormat, p.view.index, p.view.meta}); err != nil {
		return fmt.Errorf("writing snapshot header: %w", err)
	}
	rows := 0
	for table, row := range p.rows() {
		if err := enc.Encode(snapshotRow{table, row}); err != nil {
			return fmt.Errorf("writing a row of %s: %w", table, err)
		}
		rows++
	}
	if err := enc.Encode(snapshotTrailer{rows, sum.n, hex.EncodeToString(sum.hash.Sum(nil))}); err != nil {
		return fmt.Errorf("writing snapshot trailer: %w", err)
	}
	if err := sum.w.Flush(); err != nil {
		return fmt.Errorf("writing snapshot: %w", err)
	}
	return nil
}

// rows iterates every row with its table, in a fixed order, without the derived tables.
func (p *Snapshot) rows() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, table := range []string{
			tableUsers, tableAPIKeys, tableSettings, tableProviders, tableCustomSecrets, tableSpecs,
			tableSandboxes, tableConversations, tableStartTasks, tableRecentStarts, tableClientCommands, tableOrphans,
			tableReplaced, tableSetups, tableProfiles, tableSessions, tableSignInCodes,
			tableDevices,
		} {
			it, err := p.view.txn.Get(table, indexID+"_prefix", []byte(nil))
			must(err)
			for row := it.Next(); row != nil; row = it.Next() {
				if !yield(table, row) {
					return
				}
			}
		}
		for _, r := range p.commands {
			if !yield(tableInternalCommands, r) {
				return
			}
		}
	}
}

// Checksum returns a hash of the whole state, which is equal on all nodes at an equal index. It
// reads everything; it is for tests.
func (s *Store) Checksum() string {
	_, sum := s.Snapshot().Checksum()
	return sum
}

// Checksum returns the snapshot's index and the hash of its state.
func (p *Snapshot) Checksum() (index uint64, sum string) {
	h := sha256.New()
	// Writing to a hash never fails.
	must(p.Persist(h))
	return p.Index(), hex.EncodeToString(h.Sum(nil))
}

// summer counts and hashes what is written through it.
type summer struct {
	w    *bufio.Writer
	hash hash.Hash
	n    int64
}

// Write implements io.Writer.
func (s *summer) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	s.hash.Write(b[:n])
	s.n += int64(n)
	return n, err
}

// Restore replaces the whole state with a snapshot's. On an error nothing has changed. It closes
// the Changed channel of older Views, which themselves stay as they are.
func (s *Store) Restore(r io.Reader) error {
	l, err := load(r)
	if err != nil {
		return fmt.Errorf("restoring snapshot: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db, s.commands, s.usage = l.store.db, l.store.commands, l.store.usage
	s.publish(&View{
		index:    l.header.Index,
		meta:     l.header.Meta,
		txn:      s.db.Txn(false),
		commands: s.commands,
		keys:     l.header.Index,
	}, &epoch{began: Changes{All: true}})
	return nil
}

// loader builds a new store from a snapshot.
type loader struct {
	header snapshotHeader
	store  *Store
	t      *transaction
}

// load reads a snapshot to its end. It publishes nothing before the trailer is verified. Lines are
// read, decoded and stored beside each other, in their order.
func load(r io.Reader) (*loader, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	l := &loader{store: NewStore()}
	line, err := br.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("reading the header: %w", unexpected(err))
	}
	if err := l.readHeader(line); err != nil {
		return nil, err
	}
	l.t = &transaction{store: l.store, txn: l.store.db.Txn(true), meta: l.header.Meta, sums: map[string]Usage{}}
	in := &rowReader{r: br, sum: sha256.New()}
	in.add(line)
	for batch := range in.batches() {
		<-batch.decoded
		for i, row := range batch.rows {
			err := row.err
			if err == nil {
				err = row.store(l)
			}
			if err != nil {
				return nil, fmt.Errorf("row %d of table %s: %w", batch.first+i, row.table, err)
			}
		}
		if batch.err != nil {
			return nil, batch.err
		}
	}
	l.t.storeSums()
	l.t.txn.Commit()
	return l, nil
}

// readHeader checks the format.
func (l *loader) readHeader(line []byte) error {
	if err := json.Unmarshal(line, &l.header); err != nil {
		return fmt.Errorf("reading the header: %w", err)
	}
	if f := l.header.Format; f < 1 || f > SnapshotFormat {
		return fmt.Errorf("its format is %d and this node reads 1 to %d: upgrade it", f, SnapshotFormat)
	}
	if v := l.header.Meta.ProtocolVersion; v > ProtocolVersion {
		return errNewer(v)
	}
	return nil
}

// decodeRow decodes a row of a table. What it returns stores the row.
func decodeRow(table string, row []byte) (store func(*loader) error, err error) {
	switch table {
	case tableUsers:
		return decoded[User](table, row)
	case tableAPIKeys:
		return decoded[APIKey](table, row)
	case tableSettings:
		return decoded[Settings](table, row)
	case tableProviders:
		return decoded[Provider](table, row)
	case tableCustomSecrets:
		return decoded[CustomSecret](table, row)
	case tableSpecs:
		return decoded[Spec](table, row)
	case tableSandboxes:
		return decoded[Sandbox](table, row)
	case tableConversations:
		return decoded[Conversation](table, row)
	case tableStartTasks:
		return decoded[StartTask](table, row)
	case tableRecentStarts:
		return decoded[recentStart](table, row)
	case tableClientCommands:
		return decoded[commandRecord](table, row)
	case tableOrphans:
		return decoded[Orphan](table, row)
	case tableReplaced:
		return decoded[replacedSecret](table, row)
	case tableSetups:
		return decoded[Setup](table, row)
	case tableProfiles:
		return decoded[Profile](table, row)
	case tableSessions:
		return decoded[Session](table, row)
	case tableSignInCodes:
		return decoded[SignInCode](table, row)
	case tableDevices:
		return decoded[Device](table, row)
	case tableInternalCommands:
		r := new(commandRecord)
		return func(l *loader) error { return l.restoreCommand(r) }, json.Unmarshal(row, r)
	}
	return nil, errors.New("this node does not know that table: upgrade it")
}

func decoded[T any](table string, raw []byte) (store func(*loader) error, err error) {
	row := new(T)
	return func(l *loader) error { return restoreRow(l.t, table, row) }, json.Unmarshal(raw, row)
}

func (l *loader) restoreCommand(r *commandRecord) error {
	if r.ID == "" || l.store.commands.get(r.ID) != nil {
		return errNotUnique
	}
	l.store.commands.restore(r)
	return nil
}

// errNotUnique refuses a snapshot that would be counted wrongly: a duplicate row would count its
// references and its usage twice, and no row would release the second count.
var errNotUnique = errors.New("it is damaged: the row has no id, or the id of another one")

// keyIn returns a row's key in its table's main index, or errNotUnique for none.
func keyIn(t *transaction, table string, row any) ([]byte, error) {
	index, single := t.store.db.DBSchema().Tables[table].Indexes[indexID].Indexer.(memdb.SingleIndexer)
	if !single {
		return nil, fmt.Errorf("table %s has no index of single keys", table)
	}
	there, key, err := index.FromObject(row)
	if err == nil && (!there || len(bytes.Trim(key, "\x00")) == 0) {
		err = errNotUnique
	}
	return key, err
}

// restoreRow stores one row of a table and updates the per-user counters.
func restoreRow[T any](t *transaction, table string, row *T) error {
	key, err := keyIn(t, table, row)
	if err != nil {
		return err
	}
	if first[T](t.txn, table, indexID, key) != nil {
		return errNotUnique
	}
	put(t, table, nil, row)
	switch row := any(row).(type) {
	case *StartTask:
		if row.Done() {
			t.store.usageOf(row.UserID).doneTasks++
		}
	case *commandRecord:
		u := t.store.usageOf(row.UserID)
		u.clientCommands++
		u.clientWeight += row.weight()
	}
	return nil
}

// unexpected converts io.EOF to io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
