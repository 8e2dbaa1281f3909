package agentserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/durable"
)

// maxConversations limits the conversations of one sandbox.
const maxConversations = 10_000

var (
	errTooMany = errors.New("this sandbox holds too many conversations")
	errGone    = errors.New("the conversation was deleted")
)

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
	byID map[string]*conversation
	// making has the ids being created, so that concurrent requests for one id create one
	// conversation.
	making map[string]chan struct{}
}

const tmpPrefix = ".new-"

func openStore(dir string, sl *sealer, logger *slog.Logger) (*store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("conversations path: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the conversations path: %w", err)
	}
	st := &store{
		dir:    dir,
		sealer: sl,
		logger: logger,
		byID:   map[string]*conversation{},
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
		case e.IsDir() && isHexID(e.Name()):
			c, err := readConversation(filepath.Join(dir, e.Name()), e.Name())
			if err != nil {
				logger.Error("a conversation on disk can't be read; it is left as it is", "conversation", e.Name(), "error", err)
				continue
			}
			st.byID[c.id] = c
		}
	}
	return st, nil
}

func (st *store) get(id string) *conversation {
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.byID[id]
}

// all returns the conversations, newest first.
func (st *store) all() []*conversation {
	st.mu.RLock()
	list := make([]*conversation, 0, len(st.byID))
	for _, c := range st.byID {
		list = append(list, c)
	}
	st.mu.RUnlock()
	slices.SortFunc(list, func(a, b *conversation) int {
		if d := b.createdAt.Compare(a.createdAt); d != 0 {
			return d
		}
		return strings.Compare(a.id, b.id)
	})
	return list
}

// prepare returns a conversation that create then stores.
func (st *store) prepare(m meta, request []byte) *conversation {
	return &conversation{id: m.ID, createdAt: m.CreatedAt, dir: filepath.Join(st.dir, m.ID), meta: m, request: request}
}

// create stores a conversation. If the id exists, it returns that one and created is false. request
// is the create request, to be encrypted.
func (st *store) create(
	c *conversation,
	events []event.Event,
	request []byte,
) (stored *conversation, created bool, err error) {
	for {
		st.mu.Lock()
		if other := st.byID[c.id]; other != nil {
			st.mu.Unlock()
			return other, false, nil
		}
		wait := st.making[c.id]
		if wait == nil {
			break
		}
		st.mu.Unlock()
		<-wait
	}
	if len(st.byID)+len(st.making) >= maxConversations {
		st.mu.Unlock()
		return nil, false, errTooMany
	}
	done := make(chan struct{})
	st.making[c.id] = done
	st.mu.Unlock()

	err = st.write(c, events, request)

	st.mu.Lock()
	delete(st.making, c.id)
	if err == nil {
		st.byID[c.id] = c
	}
	st.mu.Unlock()
	close(done)
	return c, err == nil, err
}

// write stores a prepared conversation, completely or not at all.
func (st *store) write(c *conversation, events []event.Event, request []byte) error {
	final := c.dir
	if _, err := os.Lstat(final); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("conversation %s is on disk but can't be read", c.id)
	}
	tmp := filepath.Join(st.dir, tmpPrefix+c.id)
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
		err = writeFileSync(filepath.Join(tmp, sealFile), st.sealer.seal(c.id, request))
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
		return errors.Join(fmt.Errorf("writing conversation %s: %w", c.id, err), os.RemoveAll(tmp))
	}
	log.path = filepath.Join(final, eventsFile)
	if st.sealer != nil {
		c.request = nil // it is on disk
	}
	return nil
}

// delete removes a conversation. The workspace's files stay.
func (st *store) delete(c *conversation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deleted {
		return nil
	}
	gone := filepath.Join(st.dir, tmpPrefix+c.id)
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	if err := os.Rename(c.dir, gone); err != nil {
		return fmt.Errorf("deleting conversation %s: %w", c.id, err)
	}
	if err := durable.SyncDir(st.dir); err != nil {
		return err
	}
	c.deleted = true
	c.grew()
	st.mu.Lock()
	delete(st.byID, c.id)
	st.mu.Unlock()
	return os.RemoveAll(gone)
}

// reseal replaces a conversation's create request. The caller holds the conversation's lock.
func (st *store) reseal(c *conversation, request []byte) error {
	return durable.Replace(filepath.Join(c.dir, sealFile), st.sealer.seal(c.id, request), 0o600)
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

func isHexID(s string) bool {
	if len(s) != 32 {
		return false
	}
	for _, r := range s {
		if (r < '0' || r > '9') && (r < 'a' || r > 'f') {
			return false
		}
	}
	return true
}

// now is the present time in the precision of conversations and events.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
