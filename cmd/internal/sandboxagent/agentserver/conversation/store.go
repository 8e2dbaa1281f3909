package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/durable"
)

// maxConversations limits the conversations of one sandbox.
const maxConversations = 10_000

// ErrTooMany means that the sandbox holds no more conversations.
var ErrTooMany = errors.New("this sandbox holds too many conversations")

var errGone = errors.New("the conversation was deleted")

// store keeps each conversation in its own directory:
//
//	<dir>/<32 hex>/meta.json     the conversation, without secrets; replaced atomically
//	<dir>/<32 hex>/events.jsonl  its events, appended and synced
//	<dir>/<32 hex>/request.seal  its create request, encrypted (optional)
//
// A conversation is created in a temporary directory that is then renamed, so it exists completely
// or not at all.
type store struct {
	dir    string
	sealer *sealer
	logger *slog.Logger

	mu   sync.RWMutex
	byID map[string]*Conversation
	// making has the ids being created, so that concurrent requests for one id create one
	// conversation.
	making map[string]chan struct{}
	// stored is each conversation's.
	stored func(*Conversation)
}

const tmpPrefix = ".new-"

// openStore reads the conversations in a directory.
func openStore(dir string, sl *sealer, logger *slog.Logger) (*store, error) {
	st := &store{
		dir:    dir,
		sealer: sl,
		logger: logger,
		byID:   map[string]*Conversation{},
		making: map[string]chan struct{}{},
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the conversations path: %w", err)
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), tmpPrefix):
			// A creation or deletion that was interrupted.
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return nil, fmt.Errorf("clearing the conversations path: %w", err)
			}
		case e.IsDir() && wire.IsHexID(e.Name()):
			c, err := readConversation(filepath.Join(dir, e.Name()), e.Name())
			if err != nil {
				logger.Error("a conversation on disk can't be read; it is left as it is", "conversation", e.Name(), "error", err)
				continue
			}
			st.byID[c.Id] = c
		}
	}
	return st, nil
}

// whenStored has fn called with conversations whose events were stored. Call it before anything else.
func (st *store) whenStored(fn func(*Conversation)) {
	st.stored = fn
	for _, c := range st.byID {
		c.stored = fn
	}
}

func (st *store) get(id string) *Conversation {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.byID[id]
}

// all returns the conversations, newest first.
func (st *store) all() []*Conversation {
	st.mu.RLock()
	list := make([]*Conversation, 0, len(st.byID))
	for _, c := range st.byID {
		list = append(list, c)
	}
	st.mu.RUnlock()
	slices.SortFunc(list, func(a, b *Conversation) int {
		if d := b.createdAt.Compare(a.createdAt); d != 0 {
			return d
		}
		return strings.Compare(a.Id, b.Id)
	})
	return list
}

// prepare returns a conversation that create then stores.
func (st *store) prepare(m Meta, request []byte) *Conversation {
	return &Conversation{
		Id: m.ID, createdAt: m.CreatedAt, dir: filepath.Join(st.dir, m.ID), meta: m, request: request, stored: st.stored,
	}
}

// create stores a conversation. If the id exists, it returns that one and created is false. request
// is the create request, to be encrypted.
func (st *store) create(
	c *Conversation,
	events []event.Event,
	request []byte,
) (stored *Conversation, created bool, err error) {
	for {
		st.mu.Lock()
		if other := st.byID[c.Id]; other != nil {
			st.mu.Unlock()
			return other, false, nil
		}
		wait := st.making[c.Id]
		if wait == nil {
			break
		}
		st.mu.Unlock()
		<-wait
	}
	if len(st.byID)+len(st.making) >= maxConversations {
		st.mu.Unlock()
		return nil, false, ErrTooMany
	}
	done := make(chan struct{})
	st.making[c.Id] = done
	st.mu.Unlock()

	err = st.write(c, events, request)

	st.mu.Lock()
	delete(st.making, c.Id)
	if err == nil {
		st.byID[c.Id] = c
	}
	st.mu.Unlock()
	close(done)
	return c, err == nil, err
}

// write stores a prepared conversation, completely or not at all.
func (st *store) write(c *Conversation, events []event.Event, request []byte) error {
	final := c.dir
	if _, err := os.Lstat(final); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("conversation %s is on disk but can't be read", c.Id)
	}
	tmp := filepath.Join(st.dir, tmpPrefix+c.Id)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	log, err := openEventLog(filepath.Join(tmp, eventsFile))
	if err == nil {
		c.log = log
		err = c.write(events...)
	}
	if err == nil {
		err = writeMeta(tmp, c.meta)
	}
	if err == nil && st.sealer != nil {
		err = writeFileSync(filepath.Join(tmp, sealFile), st.sealer.seal(c.Id, request))
	}
	if err == nil {
		err = durable.SyncDir(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, final)
	}
	if err == nil {
		err = durable.SyncDir(st.dir)
	}
	if err != nil {
		c.log = nil
		return errors.Join(fmt.Errorf("writing conversation %s: %w", c.Id, err), os.RemoveAll(tmp))
	}
	log.path = filepath.Join(final, eventsFile)
	if st.sealer != nil {
		c.request = nil // it is on disk
	}
	return nil
}

// delete removes a conversation. The workspace's files stay.
func (st *store) delete(c *Conversation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted {
		return nil
	}
	gone := filepath.Join(st.dir, tmpPrefix+c.Id)
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	if err := os.Rename(c.dir, gone); err != nil {
		return fmt.Errorf("deleting conversation %s: %w", c.Id, err)
	}
	if err := durable.SyncDir(st.dir); err != nil {
		return err
	}
	c.deleted = true
	c.grew()
	st.mu.Lock()
	delete(st.byID, c.Id)
	st.mu.Unlock()
	return os.RemoveAll(gone)
}

// reseal replaces a conversation's create request. The caller holds the conversation's lock.
func (st *store) reseal(c *Conversation, request []byte) error {
	return durable.Replace(filepath.Join(c.dir, sealFile), st.sealer.seal(c.Id, request), 0o600)
}

// request returns a conversation's create request, nil if it was not stored.
func (st *store) request(id string) (json.RawMessage, error) {
	if st.sealer == nil {
		return nil, nil
	}
	sealed, err := os.ReadFile(filepath.Join(st.dir, id, sealFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return st.sealer.open(id, sealed)
}

// now is the present time in the precision of conversations and events.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// running reports whether the agent works in any conversation. One that waits for a confirmation
// does not work.
func (st *store) running() bool {
	// Not under the store's lock: delete takes the two locks in the opposite order.
	st.mu.RLock()
	list := slices.Collect(maps.Values(st.byID))
	st.mu.RUnlock()
	for _, c := range list {
		c.mu.Lock()
		at := c.goal != nil || c.run != nil && (c.run.condenses || c.log == nil || c.log.status() == engine.StatusRunning)
		c.mu.Unlock()
		if at {
			return true
		}
	}
	return false
}

// count is the number of conversations.
func (st *store) count() int {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return len(st.byID)
}
