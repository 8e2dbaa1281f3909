// Package bash runs shell commands for clients, keeps their output and serves both as bash events.
package bash

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os/exec"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/socket"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Limits of clients' commands.
const (
	maxCommands     = 500      // kept; the oldest finished ones are dropped first
	maxRunning      = 32       // running concurrently
	chunkBytes      = 30 << 10 // of output in one event
	maxCommandBytes = 1 << 20  // of output kept per command
	maxTimeout      = 24 * time.Hour
	defaultTimeout  = 300 * time.Second
	killedExit      = -1
	noShellExit     = 127
)

// timeFormat is the format of the times of bash events: UTC with its zone, unlike an event's time. All
// have the same length, so they compare as text.
const timeFormat = "2006-01-02T15:04:05.000000Z"

var errBusy = errors.New("too many commands are running")

// Runner runs shell commands and keeps their output in memory. A restart of the server kills the
// commands and loses the output. Their ids are on disk, so that a client that waits for one learns
// of its end.
type Runner struct {
	environ []string                // of every command
	as      *syscall.Credential     // nil is this process's user
	place   func(dir string) string // config.Config.InWorkspace
	sockets *socket.Set
	touch   func()

	mu       sync.Mutex
	ids      *commandIDs
	commands map[string]*command
	order    []string
	running  int
	closed   bool
	all      sync.WaitGroup
	// grown wakes the subscribers of the bash events.
	grown wakeup
}

// command is one command. mu guards the fields below it.
type command struct {
	info agent.BashCommand
	cmd  *exec.Cmd
	done chan struct{}
	// grown is the owner's; nil for a command without one.
	grown *wakeup

	mu      sync.Mutex
	outputs []agent.BashOutput
	// open is output of stdout and stderr that is not in an event yet. It becomes one when it
	// reaches chunkBytes or a client reads, so that single-byte writes do not make an event each.
	open     [2][]byte
	bytes    int
	dropped  int // bytes of output beyond maxCommandBytes
	finished bool
}

// New creates a bash with the environment, the user and the directory of command ids of cfg. It
// serves subscribers on sockets, and calls touch when a command ends.
func New(cfg config.Config, sockets *socket.Set, touch func()) *Runner {
	return &Runner{
		environ:  config.CommandEnv(cfg.Environ, cfg.Env),
		place:    cfg.InWorkspace,
		as:       cfg.Tools,
		ids:      openCommandIDs(cfg.BashEventsDir, cfg.Logger),
		sockets:  sockets,
		touch:    touch,
		commands: map[string]*command{},
	}
}

// start runs text in a shell with its own process group, in dir, for at most timeout, with more in
// its environment. Without a shell in the image the command ends with code 127.
func (b *Runner) start(text string, dir *string, timeout time.Duration, more map[string]string) (*command, error) {
	c := &command{
		info: agent.BashCommand{
			ID:        newHexID(),
			Timestamp: time.Now().UTC().Format(timeFormat),
			Kind:      kindCommand,
			Command:   text,
			Cwd:       dir,
			Timeout:   int(timeout / time.Second),
		},
		done:  make(chan struct{}),
		grown: &b.grown,
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.running >= maxRunning {
		return nil, errBusy
	}
	b.forget()
	b.ids.add(c.info.ID)
	b.commands[c.info.ID] = c
	b.order = append(b.order, c.info.ID)
	b.grown.wake()

	shell, err := findShell()
	if err == nil {
		err = c.spawn(shell, text, dir, config.CommandEnv(b.environ, more), b.as)
	}
	if err != nil {
		c.finish(noShellExit, "the command can't be started: "+err.Error()+"\n")
		return c, nil
	}
	b.running++
	b.all.Go(func() {
		c.wait(timeout)
		b.touch() // before it counts as ended, so that no one finds the sandbox unused between the two
		b.mu.Lock()
		b.running--
		b.mu.Unlock()
	})
	return c, nil
}

func findShell() (string, error) {
	for _, s := range []string{"bash", "sh"} {
		if p, err := exec.LookPath(s); err == nil {
			return p, nil
		}
	}
	return "", errors.New("there is no shell in this sandbox")
}

func (c *command) spawn(shell, text string, dir *string, env []string, as *syscall.Credential) error {
	c.cmd = exec.Command(shell, "-c", text)
	if dir != nil {
		c.cmd.Dir = *dir
	}
	c.cmd.Env = env
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: as}
	c.cmd.Stdout = outputWriter{c, false}
	c.cmd.Stderr = outputWriter{c, true}
	// A background child may keep the pipes open after the shell has exited.
	c.cmd.WaitDelay = time.Second
	return c.cmd.Start()
}

// wait waits for the command's end and kills its process group after timeout.
func (c *command) wait(timeout time.Duration) {
	timer := time.AfterFunc(timeout, c.kill)
	err := c.cmd.Wait()
	inTime := timer.Stop()
	code := c.cmd.ProcessState.ExitCode()
	var exit *exec.ExitError
	if !inTime || (err != nil && errors.As(err, &exit) && !exit.Exited()) {
		code = killedExit
	}
	c.finish(code, "")
}

// kill kills the command's process group.
func (c *command) kill() {
	// The group id is the shell's pid, which is not reused before Wait.
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
}

// outputWriter converts output to events as it arrives.
type outputWriter struct {
	c      *command
	stderr bool
}

// Write keeps output up to the limit and drops the rest, which the last event counts.
func (o outputWriter) Write(p []byte) (int, error) {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	rest := p[:min(len(p), max(0, maxCommandBytes-o.c.bytes))]
	o.c.bytes += len(rest)
	o.c.dropped += len(p) - len(rest)
	open := &o.c.open[stdoutStream]
	if o.stderr {
		open = &o.c.open[stderrStream]
	}
	o.c.grown.wake()
	for len(rest) > 0 {
		n := min(len(rest), chunkBytes-len(*open))
		*open = append(*open, rest[:n]...)
		rest = rest[n:]
		if len(*open) == chunkBytes {
			o.c.seal(false)
		}
	}
	return len(p), nil
}

// The streams of command.open.
const (
	stdoutStream = iota
	stderrStream
)

// seal flushes the open output to events. An incomplete character stays until its rest arrives, or
// until all is set. The caller holds mu.
func (c *command) seal(all bool) {
	for stream, b := range c.open {
		n := len(b)
		if !all {
			n = wholeRunes(b)
		}
		if n == 0 {
			continue
		}
		text := string(b[:n])
		c.open[stream] = append(b[:0], b[n:]...)
		if stream == stderrStream {
			c.add(agent.BashOutput{Stderr: &text})
		} else {
			c.add(agent.BashOutput{Stdout: &text})
		}
	}
}

// wholeRunes returns the length of b without an incomplete character at its end.
func wholeRunes(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if last := b[len(b)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

// add appends an output event. The caller holds mu.
func (c *command) add(e agent.BashOutput) {
	e.ID, e.Timestamp, e.Kind = newHexID(), time.Now().UTC().Format(timeFormat), kindOutput
	e.CommandID, e.Order = c.info.ID, len(c.outputs)
	c.outputs = append(c.outputs, e)
}

// finish appends the last event. It is called once.
func (c *command) finish(code int, stderr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seal(true)
	c.open = [2][]byte{}
	e := agent.BashOutput{ExitCode: &code, DroppedBytes: c.dropped}
	if stderr != "" {
		e.Stderr = &stderr
	}
	c.add(e)
	c.finished = true
	c.grown.wake()
	close(c.done)
}

// forget drops the oldest finished commands above the limit. The caller holds mu.
func (b *Runner) forget() {
	for i := 0; len(b.order) >= maxCommands && i < len(b.order); {
		c := b.commands[b.order[i]]
		c.mu.Lock()
		finished := c.finished
		c.mu.Unlock()
		if !finished {
			i++
			continue
		}
		delete(b.commands, b.order[i])
		b.order = append(b.order[:i], b.order[i+1:]...)
	}
}

// get returns a command, nil if unknown. A command of an earlier process was killed, and its output
// is lost.
func (b *Runner) get(id string) *command {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.commands[id]
	if c == nil && b.ids.has(id) {
		c = &command{info: agent.BashCommand{ID: id}, done: make(chan struct{})}
		c.finish(killedExit, "the agent server was restarted; the command was ended and its output is lost\n")
		b.commands[id] = c
		b.order = append(b.order, id)
	}
	return c
}

// Busy reports whether a command runs.
func (b *Runner) Busy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running > 0
}

// Close kills every running command and waits for it.
func (b *Runner) Close() {
	b.mu.Lock()
	b.closed = true
	for _, c := range b.commands {
		select {
		case <-c.done:
		default:
			c.kill()
		}
	}
	b.mu.Unlock()
	b.all.Wait()
}

func newHexID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
