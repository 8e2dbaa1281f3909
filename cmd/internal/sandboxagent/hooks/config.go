// Package hooks has the hooks of a project or a user: commands that run when an agent uses a tool,
// gets a message, begins or ends (PROTOCOL.md, "Skills and hooks").
package hooks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode"
)

// The events, by the names of Config's members.
const (
	PreToolUse       = "pre_tool_use"
	PostToolUse      = "post_tool_use"
	UserPromptSubmit = "user_prompt_submit"
	SessionStart     = "session_start"
	SessionEnd       = "session_end"
	Stop             = "stop"
)

const (
	file       = ".openhands/hooks.json" // below a directory
	maxFile    = 256 << 10               // bytes
	maxHooks   = 200                     // of a configuration
	maxTimeout = 3600
	// DefaultTimeout is a hook's, in seconds.
	DefaultTimeout = 60
)

// Config is the protocol's hook configuration. Its lists are never null.
type Config struct {
	PreToolUse       []Matcher `json:"pre_tool_use"`
	PostToolUse      []Matcher `json:"post_tool_use"`
	UserPromptSubmit []Matcher `json:"user_prompt_submit"`
	SessionStart     []Matcher `json:"session_start"`
	SessionEnd       []Matcher `json:"session_end"`
	Stop             []Matcher `json:"stop"`
}

// Matcher are the hooks of the tools whose name fits Matcher: "*" or empty for all, a regular
// expression, or a name.
type Matcher struct {
	Matcher string       `json:"matcher"`
	Hooks   []Definition `json:"hooks"`
}

// Definition is one command.
type Definition struct {
	// Type is "command".
	Type    string `json:"type"`
	Command string `json:"command"`
	// Timeout is in seconds.
	Timeout int `json:"timeout"`
	// Async says that nothing waits for the command.
	Async bool `json:"async"`
}

// Parse reads a configuration: members in snake_case or PascalCase, also below a member "hooks". It
// returns nil for one without hooks.
func Parse(text []byte) (*Config, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("the hooks can't be read: %w", err)
	}
	if inner, ok := doc["hooks"]; ok {
		doc = nil
		if err := json.Unmarshal(inner, &doc); err != nil {
			return nil, fmt.Errorf("the hooks can't be read: %w", err)
		}
	}
	c := &Config{}
	lists, n := c.lists(), 0
	for name, raw := range doc {
		list := lists[snake(name)]
		if list == nil {
			return nil, fmt.Errorf("%q is no event of hooks", name)
		}
		if *list != nil {
			return nil, fmt.Errorf("the event %q is there twice", snake(name))
		}
		if err := json.Unmarshal(raw, list); err != nil {
			return nil, fmt.Errorf("the hooks of %q can't be read: %w", name, err)
		}
		for i := range *list {
			n += len((*list)[i].Hooks)
			if err := (*list)[i].check(); err != nil {
				return nil, fmt.Errorf("the hooks of %q: %w", name, err)
			}
		}
	}
	switch {
	case n == 0:
		return nil, nil
	case n > maxHooks:
		return nil, fmt.Errorf("there are %d hooks, at most %d may be", n, maxHooks)
	}
	for _, list := range lists {
		if *list == nil {
			*list = []Matcher{}
		}
	}
	return c, nil
}

// check fills in defaults and refuses what could never run.
func (m *Matcher) check() error {
	m.Matcher = cmp.Or(m.Matcher, "*")
	if m.Hooks == nil {
		m.Hooks = []Definition{}
	}
	for i := range m.Hooks {
		h := &m.Hooks[i]
		h.Type = cmp.Or(h.Type, "command")
		if h.Timeout <= 0 {
			h.Timeout = DefaultTimeout
		}
		h.Timeout = min(h.Timeout, maxTimeout)
		if h.Command == "" && h.Type == "command" {
			return errors.New("a hook has no command")
		}
	}
	return nil
}

func (c *Config) lists() map[string]*[]Matcher {
	return map[string]*[]Matcher{
		PreToolUse: &c.PreToolUse, PostToolUse: &c.PostToolUse, UserPromptSubmit: &c.UserPromptSubmit,
		SessionStart: &c.SessionStart, SessionEnd: &c.SessionEnd, Stop: &c.Stop,
	}
}

// snake turns PreToolUse into pre_tool_use.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// For returns the commands of an event and, for events of a tool, of a tool's name. A nil Config has
// none.
func (c *Config) For(event, tool string) []Definition {
	if c == nil {
		return nil
	}
	list := c.lists()[event]
	if list == nil {
		return nil
	}
	var out []Definition
	for _, m := range *list {
		if m.fits(tool) {
			for _, h := range m.Hooks {
				if h.Type == "command" {
					out = append(out, h)
				}
			}
		}
	}
	return out
}

func (m Matcher) fits(tool string) bool {
	pattern := m.Matcher
	switch {
	case pattern == "*" || pattern == "":
		return true
	case tool == "":
		return false
	case len(pattern) > 2 && strings.HasPrefix(pattern, "/") && strings.HasSuffix(pattern, "/"):
		pattern = pattern[1 : len(pattern)-1]
	case !strings.ContainsAny(pattern, `|.*+?[]()^$\`):
		return pattern == tool
	}
	re, err := regexp.Compile(`^(?:` + pattern + `)$`)
	if err != nil {
		return m.Matcher == tool
	}
	return re.MatchString(tool)
}

// Load reads the hooks of a directory: .openhands/hooks.json. It returns nil where there are none.
// A link that leads out of the directory is not followed.
func Load(dir string) (*Config, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	// Without O_NONBLOCK the open of a fifo would wait.
	f, err := root.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", filepath.Join(dir, file), maxFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, err
	}
	return Parse(text)
}

// Merge joins configurations, the first's hooks first; nil ones count for nothing.
func Merge(configs ...*Config) *Config {
	var out *Config
	for _, c := range configs {
		switch {
		case c == nil:
		case out == nil:
			joined := *c
			out = &joined
		default:
			into := out.lists()
			for event, list := range c.lists() {
				*into[event] = slices.Concat(*into[event], *list)
			}
		}
	}
	return out
}
