package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// Options are what servers are started with.
type Options struct {
	// WorkingDir is the directory that programs begin in.
	WorkingDir string
	// Environ is the environment of programs. The agent server's keys are removed from it.
	Environ []string
	// Credential is the user that programs run as; nil is the process's own.
	Credential *syscall.Credential
	// Secrets returns the values by name that are masked in results; nil is none.
	Secrets func() map[string]string
	// Reserved are names of tools that no server's tool may have.
	Reserved []string
	// StartTime bounds the start of a server, with the list of its tools; 0 is 30 s.
	StartTime time.Duration
	// CallTime bounds a call; 0 is 5 min. A server's configuration may have its own.
	CallTime time.Duration
	Logger   *slog.Logger
}

// Failure is a server, or a tool of one, that can't be used.
type Failure struct {
	// Server is its name; empty for the whole configuration.
	Server string
	// Err has no secret of the configuration in it.
	Err error
}

// Servers are the servers of one conversation. Its methods are safe for concurrent use.
type Servers struct {
	servers  []*server
	tools    []tools.Tool
	failures []Failure
	stop     context.CancelFunc
}

// Connect starts the servers of a conversation's mcp_config, all at once, and lists their tools. It
// returns within Options.StartTime, or when ctx ends, with the servers that are there. The caller
// closes it.
func Connect(ctx context.Context, raw json.RawMessage, o Options) *Servers {
	o = o.filled()
	// A server lives until Close, longer than ctx.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Servers{stop: stop}
	var list []config
	list, s.failures = read(raw)
	found := make([][]*tool, len(list))
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, c := range list {
		one := &server{config: c, options: o, life: life}
		s.servers = append(s.servers, one)
		wg.Go(func() { found[i], errs[i] = one.open(ctx) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			s.failures = append(s.failures, Failure{list[i].name, err})
			o.Logger.Warn("an MCP server can't be used", "name", list[i].name, "error", err)
		}
	}
	s.tools = named(slices.Concat(found...), o.Reserved)
	return s
}

func (o Options) filled() Options {
	if o.Secrets == nil {
		o.Secrets = func() map[string]string { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.StartTime = cmp.Or(o.StartTime, 30*time.Second)
	o.CallTime = cmp.Or(o.CallTime, 5*time.Minute)
	return o
}

// Tools returns the tools in the order of their servers' names.
func (s *Servers) Tools() []tools.Tool { return slices.Clone(s.tools) }

// Failures returns what can't be used.
func (s *Servers) Failures() []Failure { return slices.Clone(s.failures) }

// Close ends the servers, with every process that they started. Calls that run return.
func (s *Servers) Close() {
	s.stop()
	var wg sync.WaitGroup
	for _, one := range s.servers {
		wg.Go(one.close)
	}
	wg.Wait()
}

// maxName is the length of a function's name that models accept.
const maxName = 64

// named gives every tool a name of its own: its server's name goes before one that several tools
// have, or that is reserved.
func named(list []*tool, reserved []string) []tools.Tool {
	count := map[string]int{}
	for _, name := range reserved {
		count[name] = 2
	}
	for _, t := range list {
		count[clean(t.remote)]++
	}
	taken := map[string]bool{}
	for _, name := range reserved {
		taken[name] = true
	}
	out := make([]tools.Tool, 0, len(list))
	for _, t := range list {
		name := clean(t.remote)
		if count[name] > 1 {
			name = clean(t.server.name + "_" + t.remote)
		}
		for base, n := name, 2; taken[name]; n++ {
			tail := fmt.Sprintf("_%d", n)
			name = base[:min(len(base), maxName-len(tail))] + tail
		}
		taken[name] = true
		t.definition.Name = name
		out = append(out, t)
	}
	return out
}

// clean returns a name with the characters and the length that models accept.
func clean(name string) string {
	b := []byte(name)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			b[i] = '_'
		}
	}
	if len(b) == 0 {
		return "tool"
	}
	return string(b[:min(len(b), maxName)])
}

// masked hides the conversation's secrets and those of a server's configuration.
func (s *server) masked(text string) string {
	all := maps.Clone(s.options.Secrets())
	if all == nil {
		all = map[string]string{}
	}
	for name, v := range s.config.secrets() {
		all["mcp "+name] = v
	}
	return tools.Mask(all, text)
}
