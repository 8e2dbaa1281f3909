package fsm

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/hashicorp/go-memdb"
)

// How long a command id is remembered. Internal ids (no fingerprint) only have
// to outlive a forwarding retry; ids that clients chose keep the promise of the
// Idempotency-Key header. The weights bound the memory that large results
// (start tasks with a long first message) can pin: the oldest ids go early then.
const (
	// InternalResults is how many internal commands are remembered.
	InternalResults = 16384
	// ClientResultTTL is how long, in command time, a client's command is
	// remembered.
	ClientResultTTL = 24 * time.Hour
	// ClientResults is how many commands of one user's clients are remembered.
	ClientResults = 10000

	maxInternalWeight = 64 << 20
	maxClientWeight   = 64 << 20
	// expirePerCommand bounds the work one client command does on expired ones.
	expirePerCommand = 16
)

// commandRecord is what is remembered of one command.
type commandRecord struct {
	ID          string    `json:"id"`
	Type        string    `json:"type"`
	UserID      string    `json:"user_id,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Time        time.Time `json:"time"`
	// Result.Index is set for errors too.
	Result Result `json:"result"`
	Err    *Error `json:"error,omitempty"`
}

// clientCommandTable holds the records with a fingerprint.
func clientCommandTable() *memdb.TableSchema {
	return newTable(tableClientCommands,
		newIndex(indexID, func(r *commandRecord) []byte { return []byte(r.ID) }),
		// Oldest first of one user, by log index.
		newIndex(indexUser, func(r *commandRecord) []byte {
			k := binary.BigEndian.AppendUint64(prefixOf(r.UserID), r.Result.Index)
			return append(k, r.ID...)
		}),
		// Oldest first of all, by command time.
		newIndex(indexTime, func(r *commandRecord) []byte {
			return append(appendTime(nil, r.Time), r.ID...)
		}),
	)
}

// recorded answers a command whose id was seen before.
func (t *transaction) recorded(cmd Command) (Outcome, bool) {
	r := t.store.commands.get(cmd.ID)
	if r == nil {
		r = first[commandRecord](t.txn, tableClientCommands, indexID, []byte(cmd.ID))
		if r != nil && cmd.Time.Sub(r.Time) > ClientResultTTL {
			t.forget(r)
			return Outcome{}, false
		}
	}
	if r == nil {
		return Outcome{}, false
	}
	if r.Fingerprint != cmd.Fingerprint || r.UserID != cmd.UserID {
		return Outcome{Result{Index: t.index}, Errorf(CodeIdempotencyMismatch,
			"this idempotency key was used before with another request: repeat that request or use another key")}, true
	}
	o := Outcome{r.Result, r.Err}
	o.Result.Replayed = true
	return o, true
}

// record remembers what a command came to.
func (t *transaction) record(cmd Command, result Result, err *Error) {
	r := &commandRecord{
		ID: cmd.ID, Type: string(cmd.Type), UserID: cmd.UserID, Fingerprint: cmd.Fingerprint,
		Time: cmd.Time, Result: result, Err: err,
	}
	if r.Fingerprint == "" {
		t.store.commands.add(r)
		return
	}
	must(t.txn.Insert(tableClientCommands, r))
	u := t.store.usageOf(r.UserID)
	u.clientCommands++
	u.clientWeight += r.weight()
	t.forgetExpired(cmd.Time)
	for u.clientCommands > ClientResults || u.clientWeight > maxClientWeight && u.clientCommands > 1 {
		t.forget(firstWithPrefix[commandRecord](t.txn, tableClientCommands, indexUser, prefixOf(r.UserID)))
	}
}

// forgetExpired drops a bounded number of client commands past their time.
func (t *transaction) forgetExpired(now time.Time) {
	var expired []*commandRecord
	for r := range withPrefix[commandRecord](t.txn, tableClientCommands, indexTime, nil) {
		if now.Sub(r.Time) <= ClientResultTTL || len(expired) == expirePerCommand {
			break
		}
		expired = append(expired, r)
	}
	for _, r := range expired {
		t.forget(r)
	}
}

// forget drops one client command.
func (t *transaction) forget(r *commandRecord) {
	must(t.txn.Delete(tableClientCommands, r))
	u := t.store.usageOf(r.UserID)
	u.clientCommands--
	u.clientWeight -= r.weight()
}

// commandRing remembers the newest internal commands. It is not part of a View:
// a map is several times cheaper per command than a table, and nobody but Apply
// needs it at one exact index.
type commandRing struct {
	mu   sync.RWMutex
	byID map[string]*commandRecord
	// records is a ring; the oldest is at head.
	records []*commandRecord
	head    int
	count   int
	weight  int
}

func newCommandRing() *commandRing {
	return &commandRing{byID: make(map[string]*commandRecord), records: make([]*commandRecord, InternalResults)}
}

// get returns the record of an id, nil when it is not remembered.
func (c *commandRing) get(id string) *commandRecord {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byID[id]
}

// add remembers a record and forgets what no longer fits.
func (c *commandRing) add(r *commandRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.weight += r.weight()
	for c.count == len(c.records) || c.weight > maxInternalWeight && c.count > 0 {
		old := c.records[c.head]
		c.records[c.head] = nil
		c.head = (c.head + 1) % len(c.records)
		c.count--
		c.weight -= old.weight()
		delete(c.byID, old.ID)
	}
	c.records[(c.head+c.count)%len(c.records)] = r
	c.count++
	c.byID[r.ID] = r
}

// all copies the records, oldest first.
func (c *commandRing) all() []*commandRecord {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*commandRecord, 0, c.count)
	for i := range c.count {
		out = append(out, c.records[(c.head+i)%len(c.records)])
	}
	return out
}

// weight estimates the bytes a record keeps in memory. It depends on the log
// only, so that all nodes forget the same records.
func (r *commandRecord) weight() int {
	w := 256 + len(r.ID) + len(r.UserID) + len(r.Fingerprint)
	if r.Err != nil {
		w += len(r.Err.Message)
	}
	if r.Result.Sandbox != nil {
		w += 2048
	}
	if c := r.Result.Conversation; c != nil {
		w += 2048 + len(valueOr(c.Title, ""))
	}
	if r.Result.StartTask != nil {
		w += r.Result.StartTask.Request.weight()
	}
	return w
}
