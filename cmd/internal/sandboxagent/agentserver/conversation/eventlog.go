package conversation

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/httpapi/eventcut"
)

// eventEntry is an event's index entry in memory; the event itself is on disk.
type eventEntry struct {
	ID        string
	Timestamp string
	Kind      string
	Source    string
	// parent is the index of the event before it on its branch, -1 for the first.
	parent int
	offset int64
	length int
}

// eventLog is one conversation's events: an append-only file with one JSON document per line. The
// owner's lock guards it.
type eventLog struct {
	path    string
	size    int64
	entries []eventEntry
	byID    map[string]int
	// state has the latest value of each key of the state updates.
	state map[string]json.RawMessage
	// first is the index of the first message of the user, -1 without one.
	first int
	// sparse is a file of an older server, which left out the members that are null.
	sparse bool
	// branched is a log in which an event is not the child of the one before it.
	branched bool
	// skipped counts unreadable lines before the last good one.
	skipped int
}

// eventHead are the members of an event that the index needs.
type eventHead struct {
	ID        string          `json:"id"`
	Timestamp string          `json:"timestamp"`
	Kind      string          `json:"kind"`
	Source    string          `json:"source"`
	ParentID  *string         `json:"parent_id"`
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
}

// openEventLog reads the file once. It truncates what follows the last good line: a write that was
// never acknowledged.
func openEventLog(path string) (*eventLog, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &eventLog{path: path, byID: map[string]int{}, state: map[string]json.RawMessage{}, first: -1}
	total, err := l.read(f)
	if err == nil && total > l.size {
		err = errors.Join(f.Truncate(l.size), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading events: %w", err)
	}
	return l, nil
}

// read indexes every good line and returns the file's length. l.size is the end of the last good
// line.
func (l *eventLog) read(r io.Reader) (int64, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	var offset int64
	pending := 0
	for {
		line, err := br.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return offset, err
		}
		whole := err == nil
		if whole && l.index(line, offset) {
			l.size = offset + int64(len(line))
			l.skipped += pending
			pending = 0
		} else if len(line) > 0 {
			pending++
		}
		offset += int64(len(line))
		if !whole {
			return offset, nil
		}
	}
}

// index adds the line at offset; false if it is not an event.
func (l *eventLog) index(line []byte, offset int64) bool {
	var h eventHead
	if json.Unmarshal(line, &h) != nil || h.ID == "" {
		return false
	}
	if _, known := l.byID[h.ID]; known {
		return true
	}
	parent := l.parentOf(h.ParentID)
	l.branched = l.branched || parent != len(l.entries)-1
	l.byID[h.ID] = len(l.entries)
	l.entries = append(l.entries, eventEntry{ID: h.ID, Timestamp: h.Timestamp, Kind: h.Kind, Source: h.Source,
		parent: parent, offset: offset, length: len(bytes.TrimRight(line, "\n"))})
	if len(l.entries) == 1 {
		l.sparse = !bytes.Contains(line, []byte(`"parent_id":null`)) // as it is of every first event
	}
	if h.Kind == event.KindStateUpdate {
		l.state[h.Key] = h.Value
	}
	if h.Kind == event.KindMessage && h.Source == event.SourceUser && l.first < 0 {
		l.first = len(l.entries) - 1
	}
	return true
}

// status is the latest execution status; idle without one.
func (l *eventLog) status() string {
	var v string
	if json.Unmarshal(l.state[engine.KeyStatus], &v) != nil || v == "" {
		return engine.StatusIdle
	}
	return v
}

// append writes events in one write and syncs before it returns.
func (l *eventLog) append(events []event.Event) error {
	var buf bytes.Buffer
	lines := make([][]byte, 0, len(events))
	for _, e := range events {
		b, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encoding an event: %w", err)
		}
		b = append(b, '\n')
		lines = append(lines, b)
		buf.Write(b)
	}
	if err := appendSync(l.path, l.size, buf.Bytes()); err != nil {
		return err
	}
	for _, b := range lines {
		l.index(b, l.size)
		l.size += int64(len(b))
	}
	return nil
}

// body reads one event's JSON.
func (l *eventLog) body(e eventEntry) (json.RawMessage, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, e.length)
	if _, err := f.ReadAt(b, e.offset); err != nil {
		return nil, fmt.Errorf("reading event %s: %w", e.ID, err)
	}
	if l.sparse {
		return event.Whole(b), nil
	}
	return b, nil
}

// tail reads events from a position on, the last one if it is negative: at most about so many bytes, at
// least one event if there is one. Texts that are too large to be kept are cut.
func (l *eventLog) tail(from, bytes int) (texts []json.RawMessage, first int, err error) {
	if from < 0 {
		from = max(len(l.entries)-1, 0)
	}
	first = from
	for size := 0; from < len(l.entries); from++ {
		e := l.entries[from]
		if size += e.length; len(texts) > 0 && size > bytes {
			break
		}
		b, err := l.body(e)
		if err != nil {
			return nil, first, err
		}
		texts = append(texts, eventcut.Cut(b))
	}
	return texts, first, nil
}
