package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	terminalObservation = "TerminalObservation"
	stillRunning        = -1
	// maxCommand bounds a command, in bytes. A longer text belongs into a file.
	maxCommand = 256 << 10
	// maxPrefix bounds the rest of an earlier command's output, in characters.
	maxPrefix = 5000
	maxWait   = 24 * time.Hour
)

const howToGoOn = `You may wait longer to see additional output by sending empty command '', ` +
	`send other input to the running program with is_input=true, send keys ("C-c", "C-z", "C-d") to interrupt or ` +
	`end it before sending your new command, or use the timeout parameter for future commands.`

// Terminal is a persistent shell.
type Terminal struct {
	c Config

	turn   chan struct{} // held by the call that uses the shell
	shell  *shell
	closed context.Context
	cancel context.CancelFunc
	once   sync.Once
}

// TerminalAction is the action of the terminal.
//
//nolint:lll // a description is one tag
type TerminalAction struct {
	Kind    string `json:"kind" tool:"-"`
	Command string `json:"command" tool:"required" jsonschema:"The bash command. Empty: wait for more output of the command that runs. With is_input: text for the running program, or one key such as C-c, C-d, C-z, TAB, ESC, UP, ENTER."`
	IsInput bool   `json:"is_input" jsonschema:"The command is input for the program that runs in the terminal. Default: false."`
	// Timeout is in seconds; null is none. SILENT stands for Config.SoftTimeout.
	Timeout *float64 `json:"timeout" jsonschema:"Seconds after which the command is interrupted and, if it goes on, killed. Without it, control comes back to you when there is no output for SILENT s, and the command goes on."`
	Reset   bool     `json:"reset" jsonschema:"Begin with a new shell and end everything that runs in the old one. Only for a terminal that does not react. Not with is_input."`
}

// Metadata is what an observation of the terminal tells beside the output.
type Metadata struct {
	ExitCode   int     `json:"exit_code"`
	PID        int     `json:"pid"`
	Username   *string `json:"username"`
	Hostname   *string `json:"hostname"`
	WorkingDir *string `json:"working_dir"`
	Python     *string `json:"py_interpreter_path"`
	Prefix     string  `json:"prefix"`
	Suffix     string  `json:"suffix"`
}

// around returns an output with the metadata that a model is told.
func (m Metadata) around(output string) string {
	text := m.Prefix + output + m.Suffix
	if m.WorkingDir != nil {
		text += "\n[Current working directory: " + *m.WorkingDir + "]"
	}
	if m.Python != nil {
		text += "\n[Python interpreter: " + *m.Python + "]"
	}
	if m.ExitCode != stillRunning {
		text += "\n[Command finished with exit code " + strconv.Itoa(m.ExitCode) + "]"
	}
	return text
}

func newTerminal(c Config) *Terminal {
	t := &Terminal{c: c, turn: make(chan struct{}, 1)}
	t.closed, t.cancel = context.WithCancel(context.Background())
	return t
}

// parameters are those of an action, with the time that the description of timeout names.
func (t *Terminal) parameters() json.RawMessage {
	s := SchemaOf[TerminalAction]()
	about := &s.Properties["timeout"].Description
	*about = strings.Replace(*about, "SILENT", seconds(t.c.SoftTimeout), 1)
	return Parameters(s)
}

// Definition implements Tool.
//
//nolint:lll // a paragraph of the description is a line
func (t *Terminal) Definition() Definition {
	return Definition{
		Name:            TerminalName,
		Title:           TerminalName,
		Kind:            "TerminalTool",
		ActionType:      "TerminalAction",
		ObservationType: terminalObservation,
		Description: `Run a bash command in a shell that stays: the working directory, variables, functions and background jobs are kept from one command to the next.

* One command runs at a time. Several lines are run in order; use && or ; to combine commands.
* Do not use "set -e" or "exit" in the shell itself: they end it, and with it everything it keeps. Use a script or a subshell.
* A command that gives no output for ` + seconds(
			t.c.SoftTimeout,
		) + ` s returns exit code -1 and goes on. Then send an empty command to wait for more, text or a key with is_input=true, or C-c to interrupt it.
* Give a timeout to a command that may be quiet for long, such as an installation or tests, or that may hang.
* Start servers in the background with their output in a file: python3 app.py > server.log 2>&1 &
* Nobody answers questions of programs: prefer options such as --yes, and never open an editor or a pager.
* Output of more than 30000 characters loses its middle.`,
		Parameters:  t.parameters(),
		Annotations: &event.ToolAnnotations{Title: TerminalName, DestructiveHint: true, OpenWorldHint: true},
	}
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// Parse implements Tool.
func (t *Terminal) Parse(arguments string) (Call, error) {
	var a TerminalAction
	call, err := parse(arguments, "TerminalAction", &a)
	if err == nil {
		err = a.check()
	}
	return call, err
}

func (a *TerminalAction) check() error {
	switch {
	case len(a.Command) > maxCommand:
		return fmt.Errorf("the command has %d bytes; at most %d are allowed; put the text into a file with file_editor",
			len(a.Command), maxCommand)
	case strings.ContainsRune(a.Command, 0):
		return errors.New("the command has a NUL character in it, which a shell can't take")
	case a.Timeout != nil && (*a.Timeout < 0 || *a.Timeout > maxWait.Seconds()):
		return fmt.Errorf("the timeout must be between 0 and %s seconds", seconds(maxWait))
	case a.Reset && a.IsInput:
		return errors.New("reset and is_input can't be used together: a new shell has no program that reads input")
	}
	return nil
}

// Run implements Tool.
func (t *Terminal) Run(ctx context.Context, action json.RawMessage) Observation {
	return Guard(terminalObservation, func() Observation {
		var a TerminalAction
		err := json.Unmarshal(action, &a)
		if err == nil {
			err = a.check()
		}
		if err != nil {
			return t.failed(a, err.Error())
		}
		select {
		case t.turn <- struct{}{}:
		case <-ctx.Done():
			return t.failed(a, "The call was interrupted while another command ran in the terminal.")
		case <-t.closed.Done():
			return t.failed(a, "The terminal is closed.")
		}
		defer func() { <-t.turn }()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(t.closed, stop)()
		if t.closed.Err() != nil {
			return t.failed(a, "The terminal is closed.")
		}
		return t.run(ctx, a)
	})
}

// run runs an action. The caller holds the turn.
func (t *Terminal) run(ctx context.Context, a TerminalAction) Observation {
	note, err := t.ready(ctx, a)
	if err != nil {
		return t.failed(a, err.Error())
	}
	t.shell.out.secrets(t.c.Secrets())
	if a.Reset && strings.TrimSpace(a.Command) == "" {
		return t.observe(a,
			"Terminal session has been reset. All previous environment variables and session state have been cleared.", Metadata{
				ExitCode: 0,
				PID:      -1,
			})
	}
	key, isKey := keys(a.Command)
	input := a.IsInput || t.shell.running && isKey
	switch {
	case !t.shell.running && (input || strings.TrimSpace(a.Command) == ""):
		text := "No previous running command to retrieve logs from."
		if input {
			text = "No previous running command to interact with."
		}
		return t.failed(a, note+text)
	case strings.TrimSpace(a.Command) == "":
		return t.wait(ctx, a, note)
	case input:
		return t.input(ctx, a, key, note)
	}
	return t.start(ctx, a, note)
}

// ready makes sure that there is a shell. The note says what became of a former one.
func (t *Terminal) ready(ctx context.Context, a TerminalAction) (note string, err error) {
	dir := t.c.WorkingDir
	switch {
	case t.shell == nil:
	case a.Reset:
		t.drop()
	case t.shell.dead():
		note = "[The shell had ended and was replaced by a new one. Its variables and its working directory are lost.]\n"
		t.drop()
	}
	if t.shell != nil {
		return "", nil
	}
	s, err := startShell(ctx, t.c, dir, false)
	if err != nil && ctx.Err() == nil {
		s, err = startShell(ctx, t.c, dir, true) // the user's start file may be at fault
	}
	if err != nil {
		return "", fmt.Errorf("The terminal can't be started: %w", err)
	}
	t.shell = s
	return note, nil
}

// drop ends the shell.
func (t *Terminal) drop() {
	if t.shell != nil {
		t.shell.kill()
		t.shell = nil
	}
}

// start runs a new command.
func (t *Terminal) start(ctx context.Context, a TerminalAction, note string) Observation {
	s := t.shell
	if s.running {
		if s.prompted() {
			last := s.out.prompted()
			rest := s.out.take(true)
			note += fmt.Sprintf("[The previous command has ended with exit code %d.]\n", last.exit)
			if rest != "" {
				note += "[Below is the rest of its output.]\n" + elide(rest,
					maxPrefix) + "\n[End of the output of the previous command.]\n"
			}
			s.running = false
		} else {
			out := s.out.take(false)
			m := t.metadata(stillRunning)
			m.Prefix = note + "[Below is the output of the previous command.]\n"
			m.Suffix = fmt.Sprintf(
				"\n[Your command %q is NOT executed. The previous command is still running - You CANNOT send new commands until "+
					"the previous command is completed. %s]",
				elide(a.Command, 200),
				howToGoOn,
			)
			return t.observe(a, out, m)
		}
	} else if rest := s.out.take(true); rest != "" {
		note += "[Below is output of background processes since the last command.]\n" + elide(rest,
			maxPrefix) + "\n[End of that output.]\n"
	}
	if err := s.begin(ctx, a.Command, t.exports(a.Command)); err != nil {
		t.drop()
		return t.failed(a, note+"The command could not be typed into the terminal, which is replaced: "+err.Error())
	}
	return t.wait(ctx, a, note)
}

// name is a name that a shell takes for a variable.
var name = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// exports returns the secrets whose names occur in a command.
func (t *Terminal) exports(command string) map[string]string {
	values := t.c.Secrets()
	out := map[string]string{}
	for _, word := range name.FindAllString(command, -1) {
		if v, is := values[word]; is && !strings.ContainsRune(v, 0) {
			out[word] = v
		}
	}
	return out
}

// input sends text or a key to the program that runs.
func (t *Terminal) input(ctx context.Context, a TerminalAction, key, note string) Observation {
	s := t.shell
	if s.prompted() {
		o := t.wait(ctx, a, note+"[The command had ended before; the input was not sent.]\n")
		return o
	}
	text := key
	if text == "" {
		text = a.Command + "\n"
	} else if key == "\x03" || key == "\x1a" || key == "\x1c" {
		s.interrupted = true
		s.flushInput() // a full queue would keep the key from being seen
	}
	limited, stop := context.WithTimeout(ctx, t.c.SoftTimeout)
	err := s.typed(limited, text)
	stop()
	if err != nil && ctx.Err() == nil {
		note += "[The program does not read its input; not all of it was sent.]\n"
	}
	return t.wait(ctx, a, note)
}

// wait waits for the end of the command, or a limit, and reports. After an input it also ends when the
// program waits for more.
func (t *Terminal) wait(ctx context.Context, a TerminalAction, note string) Observation {
	s := t.shell
	l := limits{silent: t.c.SoftTimeout, long: t.c.LongTimeout}
	if a.Timeout != nil {
		l = limits{hard: max(time.Millisecond, time.Duration(*a.Timeout*float64(time.Second)))}
	}
	l.asks = a.IsInput
	why := s.wait(ctx, l)
	switch why {
	case endedPrompt:
		last := s.out.prompted()
		return t.ended(a, last, note, "")
	case endedShell:
		return t.lost(a, note, "\n[The shell has ended, by the command or by a signal. "+
			"The next command runs in a new shell; variables and the working directory are lost.]")
	case endedSilent, endedLong, endedAsks:
		out := s.out.take(false)
		m := t.metadata(stillRunning)
		m.Prefix = note
		switch why {
		case endedAsks:
			m.Suffix = "\n[The program waits for input. " + howToGoOn + "]"
		case endedSilent:
			m.Suffix = fmt.Sprintf("\n[The command has no new output after %s seconds. %s]", seconds(t.c.SoftTimeout), howToGoOn)
		default:
			m.Suffix = fmt.Sprintf("\n[The command is still running after %s seconds. %s]", seconds(t.c.LongTimeout), howToGoOn)
		}
		return t.observe(a, out, m)
	}
	return t.stop(a, why, note)
}

// stop ends the command, for its time-out or an interrupt.
func (t *Terminal) stop(a TerminalAction, why end, note string) Observation {
	what := "was interrupted by the user"
	if why == endedHard {
		what = fmt.Sprintf("was ended because it took longer than its timeout of %g seconds", *a.Timeout)
	}
	if !t.shell.interrupt() {
		return t.timedOut(t.lost(a, note, "\n[The command "+what+". It could not be ended alone: the shell was replaced, "+
			"its variables and its working directory are lost.]"), why)
	}
	last := t.shell.out.prompted()
	return t.timedOut(t.ended(a, last, note, "\n[The command "+what+".]"), why)
}

func (t *Terminal) timedOut(o Observation, why end) Observation {
	o.Members["timeout"] = why == endedHard
	return o
}

// ended reports a command that has ended.
func (t *Terminal) ended(a TerminalAction, last prompt, note, suffix string) Observation {
	t.shell.running = false
	out := t.shell.out.take(true)
	m := t.metadata(last.exit)
	m.PID = last.background
	m.Prefix, m.Suffix = note, suffix
	if suffix == "" {
		m.Suffix = fmt.Sprintf("\n[The command completed with exit code %d.]", last.exit)
	}
	if last.python != "" {
		m.Python = &last.python
	}
	return t.observe(a, out, m)
}

// lost reports a command with which the shell ended, and drops the shell.
func (t *Terminal) lost(a TerminalAction, note, suffix string) Observation {
	s := t.shell
	t.drop()
	code := stillRunning
	if state := s.cmd.ProcessState; state.Exited() {
		code = state.ExitCode()
	}
	out := s.out.take(true)
	m := Metadata{ExitCode: code, PID: -1, Prefix: note, Suffix: suffix}
	o := t.observe(a, out, m)
	o.IsError = true
	return o
}

// metadata describes the shell.
func (t *Terminal) metadata(code int) Metadata {
	m := Metadata{ExitCode: code, PID: -1}
	if host, err := os.Hostname(); err == nil {
		m.Hostname = &host
	}
	uid := os.Getuid()
	if t.c.Credential != nil {
		uid = int(t.c.Credential.Uid)
	}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		m.Username = &u.Username
	}
	if dir := t.shell.workingDir(); dir != "" {
		m.WorkingDir = &dir
	}
	return m
}

func (t *Terminal) failed(a TerminalAction, text string) Observation {
	o := t.observe(a, text, Metadata{ExitCode: stillRunning, PID: -1})
	o.IsError = true
	o.Members["exit_code"] = nil
	return o
}

// observe makes an observation. The output is masked already; the rest is masked here.
func (t *Terminal) observe(a TerminalAction, output string, m Metadata) Observation {
	secrets := t.c.Secrets()
	m.Prefix, m.Suffix = Mask(secrets, m.Prefix), Mask(secrets, m.Suffix)
	return Observation{
		Kind: terminalObservation, Content: []event.Content{event.TextContent(output)},
		Members: map[string]any{
			"command": Mask(secrets, a.Command), "exit_code": m.ExitCode, "timeout": false,
			"metadata": m, "full_output_save_dir": nil,
		},
	}
}

// close ends the shell. A call that runs returns first.
func (t *Terminal) close() {
	t.once.Do(func() {
		t.cancel()
		t.turn <- struct{}{}
		t.drop()
		<-t.turn
	})
}

// keys returns the bytes of a key's name.
func keys(command string) (string, bool) {
	k := strings.TrimSpace(command)
	if len(k) == 3 && strings.HasPrefix(k, "C-") {
		c := k[2] &^ 0x20 // upper case
		if c >= '@' && c <= '_' && k[2] != '@' {
			return string(rune(c & 0x1f)), true
		}
	}
	switch k {
	case "ENTER":
		return "\n", true
	case "TAB":
		return "\t", true
	case "ESC":
		return "\x1b", true
	case "BS":
		return "\x7f", true
	case "UP":
		return "\x1b[A", true
	case "DOWN":
		return "\x1b[B", true
	case "RIGHT":
		return "\x1b[C", true
	case "LEFT":
		return "\x1b[D", true
	case "HOME":
		return "\x1b[H", true
	case "END":
		return "\x1b[F", true
	}
	return "", false
}
