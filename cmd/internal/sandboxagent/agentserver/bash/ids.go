package bash

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/scheduler/durable"
)

const (
	commandIDsFile = "commands"
	commandIDLine  = 33 // 32 hex digits and a line feed
	// maxCommandIDs is how many ids the file may hold before it is cut to the newest maxCommands.
	// The file has at most about 64 KiB.
	maxCommandIDs = 4 * maxCommands
)

// commandIDs is the file of command ids, one per line, oldest first. It survives the process but
// not a power failure, after which recent commands are unknown. Errors are logged and otherwise
// ignored. The owner's lock guards it.
type commandIDs struct {
	path   string
	logger *slog.Logger
	ids    []string
	known  map[string]bool
}

// openCommandIDs reads the file in dir; an empty dir stores nothing.
func openCommandIDs(dir string, logger *slog.Logger) *commandIDs {
	c := &commandIDs{logger: logger, known: map[string]bool{}}
	if dir == "" {
		return c
	}
	c.path = filepath.Join(dir, commandIDsFile)
	err := os.MkdirAll(dir, 0o700)
	var b []byte
	if err == nil {
		b, err = os.ReadFile(c.path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.fail(err)
		return c
	}
	for line := range strings.Lines(string(b)) {
		// A line truncated by a kill belongs to no client: an id is returned only after it is
		// written.
		if id := strings.TrimSuffix(line, "\n"); wire.IsHexID(id) && !c.known[id] {
			c.ids, c.known[id] = append(c.ids, id), true
		}
	}
	if len(b) > 0 && len(b) != len(c.ids)*commandIDLine || len(c.ids) >= maxCommandIDs {
		c.rewrite()
	}
	return c
}

func (c *commandIDs) has(id string) bool { return c.known[id] }

// add appends an id to the file.
func (c *commandIDs) add(id string) {
	if c.path == "" {
		return
	}
	if len(c.ids) >= maxCommandIDs {
		c.rewrite()
	}
	c.ids, c.known[id] = append(c.ids, id), true
	f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(id + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		c.fail(err)
	}
}

// rewrite keeps only the newest ids.
func (c *commandIDs) rewrite() {
	if n := len(c.ids) - maxCommands; n > 0 {
		for _, id := range c.ids[:n] {
			delete(c.known, id)
		}
		c.ids = append([]string(nil), c.ids[n:]...)
	}
	var buf bytes.Buffer
	for _, id := range c.ids {
		buf.WriteString(id + "\n")
	}
	if err := durable.Replace(c.path, buf.Bytes(), 0o600); err != nil {
		c.fail(err)
	}
}

// forget removes ids from the file.
func (c *commandIDs) forget(ids map[string]bool) {
	c.ids = slices.DeleteFunc(c.ids, func(id string) bool { return ids[id] })
	for id := range ids {
		delete(c.known, id)
	}
	if c.path != "" {
		c.rewrite()
	}
}

func (c *commandIDs) fail(err error) {
	c.logger.Warn("the ids of commands can't be kept; a restart will not know which it ended", "path", c.path, "error",
		err)
}
