package tools

import (
	"context"
	"crypto/rand"
	_ "embed" // the shell's start file
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// Times of a shell.
const (
	startTime   = 15 * time.Second       // until the first prompt
	softKill    = 500 * time.Millisecond // between SIGINT and SIGKILL
	promptTime  = time.Second            // from the first SIGKILL to the prompt
	againKill   = 50 * time.Millisecond  // between one signal and the next
	hardKill    = 2 * time.Second        // of further SIGKILLs before the shell's own end
	settleTime  = time.Second            // for one empty command after an interrupt
	settleTries = 5
	drainTime   = 500 * time.Millisecond // for the rest of the output of a shell that ended
	askLook     = 100 * time.Millisecond // between two looks whether a program waits for input
	askLooks    = 3                      // in a row find that, without output between them
)

// encodedLine is the length of a line of an encoded command. A terminal takes at most 4095 bytes.
const encodedLine = 1024

// cookieName is the variable by which the processes of a shell are found, those too that have left
// its session.
const cookieName = "BIVOUAC_TERMINAL"

//go:embed start.bash
var startFile string

// runLine is what is typed for each command. All of it is one line, so that an interrupted command
// takes the rest of it along; the next prompt comes from PROMPT_COMMAND.
const runLine = ` { __bivouac_read; } 2>/dev/null; eval "$__bivouac_command"; { __bivouac_done; } 2>/dev/null` + "\n"

// shell is a bash on a terminal of its own. The methods are called by one goroutine at a time,
// except kill.
type shell struct {
	cmd    *exec.Cmd
	out    *screen
	cookie string
	// master is the terminal's end here. slave is kept open to set modes and to drop input.
	master, slave *os.File
	modes         unix.Termios
	read          chan struct{} // closed when the output is at its end
	exited        chan struct{} // closed when the shell was waited for
	// turn is the number of the present command. A prompt of another turn is not its end: an
	// interrupt that comes at the prompt makes one more.
	turn int
	// interrupted is set when an interrupt was sent that the shell may not have handled.
	interrupted bool
	// running is set from a command's begin until its end was reported.
	running bool
	command string // that runs
}

// startShell starts a shell in dir and waits for its first prompt. With plain, it does not read the
// user's start file.
func startShell(ctx context.Context, c Config, dir string, plain bool) (*shell, error) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		return nil, errors.New("there is no bash in this sandbox; its image has to have one")
	}
	nonce := rand.Text()
	s := &shell{
		cookie: rand.Text(), out: newScreen(nonce, c.Secrets()),
		read: make(chan struct{}), exited: make(chan struct{}),
	}
	if err := s.openTerminal(c.Credential); err != nil {
		return nil, fmt.Errorf("no terminal can be opened: %w", err)
	}
	start, err := startPipe(nonce, plain)
	if err != nil {
		s.closeTerminal()
		return nil, err
	}
	defer start.Close()
	if as := c.Credential; as != nil {
		// The shell opens it by its name, as that user.
		if err := start.Chown(int(as.Uid), int(as.Gid)); err != nil {
			s.closeTerminal()
			return nil, err
		}
	}
	s.cmd = exec.Command(bash, "--noprofile", "--rcfile", "/dev/fd/3", "--noediting", "-i")
	s.cmd.Dir = existing(dir)
	s.cmd.Env = append(shellEnv(c), cookieName+"="+s.cookie)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.slave, s.slave, s.slave
	s.cmd.ExtraFiles = []*os.File{start}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: c.Credential}
	if err := s.cmd.Start(); err != nil {
		s.closeTerminal()
		return nil, fmt.Errorf("bash can't be started: %w", err)
	}
	go s.receive()
	go func() {
		_ = s.cmd.Wait() // its state has the result
		close(s.exited)
	}()
	switch end := s.wait(ctx, limits{hard: startTime}); end {
	case endedPrompt:
		s.out.take(true) // no command printed what the start files print
		return s, nil
	case endedContext:
		s.kill()
		return nil, ctx.Err()
	default:
		s.kill()
		return nil, fmt.Errorf("the shell gave no prompt within %s; it printed: %q", startTime, s.out.take(true))
	}
}

// startPipe returns a pipe to read the start file from, so that the nonce is in no file.
func startPipe(nonce string, plain bool) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	text := strings.ReplaceAll(startFile, "@NONCE@", nonce)
	if !plain {
		text = "[ -r ~/.bashrc ] && . ~/.bashrc\n" + text
	}
	if _, err := w.WriteString(text); err != nil { // it is less than a pipe holds
		r.Close()
		return nil, err
	}
	return r, nil
}

// openTerminal opens the pair of terminal files.
func (s *shell) openTerminal(as *syscall.Credential) error {
	master, slave, err := pty.Open()
	if err != nil {
		return err
	}
	defer master.Close()
	s.slave = slave
	fail := func(err error) error { slave.Close(); return err }
	if as != nil {
		if err := slave.Chown(int(as.Uid), int(as.Gid)); err != nil {
			return fail(err)
		}
	}
	// The master is used through the poller, so that closing it ends a read.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fail(err)
	}
	s.master = os.NewFile(uintptr(fd), master.Name())
	if err := pty.Setsize(slave, &pty.Winsize{Rows: 50, Cols: 200}); err != nil {
		s.closeTerminal()
		return err
	}
	modes, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		s.closeTerminal()
		return err
	}
	// No echo and no translation of output; no flow control, which a typed C-s would begin.
	modes.Iflag = unix.ICRNL | unix.IUTF8
	modes.Oflag = 0
	modes.Lflag = unix.ISIG | unix.ICANON | unix.IEXTEN
	s.modes = *modes
	return s.setModes()
}

func (s *shell) setModes() error {
	modes := s.modes
	return unix.IoctlSetTermios(int(s.slave.Fd()), unix.TCSETS, &modes)
}

func (s *shell) closeTerminal() {
	_ = s.slave.Close()
	_ = s.master.Close()
}

// receive reads the output until the terminal is at its end.
func (s *shell) receive() {
	defer close(s.read)
	b := make([]byte, 32<<10)
	for {
		n, err := s.master.Read(b)
		_, _ = s.out.Write(b[:n])
		if err != nil {
			return // EIO when the shell has ended, or closed by kill
		}
	}
}

// end is why wait returned.
type end int

const (
	endedPrompt  end = iota // the command has ended
	endedShell              // the shell has ended
	endedSilent             // there was no output for a time
	endedLong               // there was output for a long time
	endedHard               // the caller's own limit
	endedContext            // the context ended
	endedAsks               // the program waits for input
)

// limits bound a wait. 0 is no limit. With asks it ends when the program waits for input.
type limits struct {
	silent, long, hard time.Duration
	asks               bool
}

// wait waits until the present command ends, or a limit is reached.
func (s *shell) wait(ctx context.Context, l limits) end {
	silent, long, hard := after(l.silent), after(l.long), after(l.hard)
	var look <-chan time.Time
	if l.asks {
		ticker := time.NewTicker(askLook)
		defer ticker.Stop()
		look = ticker.C
	}
	for asked := 0; ; {
		if s.prompted() {
			return endedPrompt
		}
		select {
		case <-s.out.changed:
			if l.silent > 0 {
				silent = after(l.silent)
			}
			asked = 0
		case <-look:
			if asked++; !s.asks() {
				asked = 0
			}
			if asked == askLooks {
				return endedAsks
			}
		case <-s.exited:
			select {
			case <-s.read:
			case <-time.After(drainTime):
			}
			return endedShell
		case <-silent:
			return endedSilent
		case <-long:
			return endedLong
		case <-hard:
			return endedHard
		case <-ctx.Done():
			return endedContext
		}
	}
}

func after(d time.Duration) <-chan time.Time {
	if d == 0 {
		return nil
	}
	return time.After(d)
}

// begin types a command, and before it the assignments of secrets. It returns early when ctx ends;
// the shell is then of no use.
func (s *shell) begin(ctx context.Context, command string, exports map[string]string) error {
	if err := s.setModes(); err != nil {
		return err
	}
	// What was typed for an earlier program and not read is no command.
	s.flushInput()
	if err := s.settle(ctx); err != nil {
		return err
	}
	s.running, s.command = true, command
	var names []string
	for name := range exports {
		names = append(names, name)
	}
	slices.Sort(names)
	var assign strings.Builder
	for _, name := range names {
		fmt.Fprintf(&assign, "export %s='%s'\n", name, strings.ReplaceAll(exports[name], "'", `'\''`))
	}
	return s.turnTo(ctx, assign.String(), command)
}

// turnTo types a command as the next turn.
func (s *shell) turnTo(ctx context.Context, assign, command string) error {
	s.turn++
	return s.typed(ctx, runLine+encode(fmt.Sprintf("__bivouac_turn=%d\n", s.turn)+assign)+encode(command))
}

// prompted reports whether the present command has ended.
func (s *shell) prompted() bool { return s.out.prompted().turn == s.turn }

// settle waits until the shell has handled an interrupt: what is typed before its last prompt may be
// dropped there.
func (s *shell) settle(ctx context.Context) error {
	if !s.interrupted {
		return nil
	}
	end := time.After(10 * settleTime) // a background process may print all the time
	for quiet := false; !quiet; {
		select {
		case <-s.out.changed:
		case <-time.After(settleTime):
			quiet = true
		case <-end:
			quiet = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.interrupted = false
	s.flushInput()
	s.out.dropBlank()
	return nil
}

// typed writes to the terminal. A program that reads nothing may make it wait.
func (s *shell) typed(ctx context.Context, text string) error {
	stop := context.AfterFunc(ctx, func() { _ = s.master.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := s.master.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, err := s.master.WriteString(text)
	return err
}

// encode writes a text as lines that a terminal passes on unchanged. An empty line ends it.
func encode(text string) string {
	var b strings.Builder
	n := 0
	for i := range len(text) {
		c := text[i]
		if c < ' ' || c >= 0x7f || c == '\\' {
			fmt.Fprintf(&b, `\x%02x`, c)
			n += 4
		} else {
			b.WriteByte(c)
			n++
		}
		if n >= encodedLine {
			b.WriteByte('\n')
			n = 0
		}
	}
	if n > 0 {
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.String()
}

// interrupt ends the present command: with SIGINT, then SIGKILL. It reports whether the shell is at
// its prompt afterwards.
func (s *shell) interrupt() bool {
	s.interrupted = true
	s.flushInput()
	switch s.soften() {
	case endedPrompt:
		return true
	case endedShell:
		return false
	}
	// A SIGINT that comes while the shell waits for the job drops the rest of the command. One that
	// comes on the way to the prompt takes the place of the job's exit code: the shell gets time.
	deadline := time.Now().Add(promptTime + hardKill)
	for pause := promptTime; time.Now().Before(deadline); pause = againKill {
		_ = s.cmd.Process.Signal(syscall.SIGINT)
		if job := s.job(); job == 0 || syscall.Kill(-job, syscall.SIGKILL) != nil {
			pause = againKill
		}
		switch s.wait(context.Background(), limits{hard: pause}) {
		case endedPrompt:
			return true
		case endedShell:
			return false
		}
	}
	return false
}

// soften sends SIGINT once to each job that is in front within softKill, or to the shell if it is
// there itself. A job that ends just then by itself leaves a loop of the shell going on.
func (s *shell) soften() end {
	last := s.job()
	if last == 0 || syscall.Kill(-last, syscall.SIGINT) != nil {
		_ = s.cmd.Process.Signal(syscall.SIGINT)
	}
	why := endedHard
	for deadline := time.Now().Add(softKill); why == endedHard && time.Now().Before(deadline); {
		why = s.wait(context.Background(), limits{hard: againKill})
		if job := s.job(); why == endedHard && job != 0 && job != last {
			_ = syscall.Kill(-job, syscall.SIGINT) // one that has ended is what is wanted
			last = job
		}
	}
	return why
}

// job returns the process group in front, 0 if that is the shell's own.
func (s *shell) job() int {
	// The master tells it for a terminal that is not this process's own.
	conn, err := s.master.SyscallConn()
	if err != nil {
		return 0
	}
	group := 0
	if failed := conn.Control(func(fd uintptr) {
		group, err = unix.IoctlGetInt(int(fd),
			unix.TIOCGPGRP)
	}); failed != nil || err != nil {
		return 0
	}
	if group <= 1 || group == s.cmd.Process.Pid {
		return 0
	}
	return group
}

// kill ends the shell and every process that was started in it.
func (s *shell) kill() {
	killTree(s.cmd.Process.Pid, s.cookie, s.cmd.SysProcAttr.Credential)
	<-s.exited
	s.closeTerminal()
	<-s.read
}

// dead reports whether the shell has ended, also when it was not waited for yet.
func (s *shell) dead() bool {
	select {
	case <-s.exited:
		return true
	default:
		_, _, there := stat(s.cmd.Process.Pid)
		return !there
	}
}

// workingDir returns the shell's directory, empty if it has ended.
func (s *shell) workingDir() string {
	if s.dead() {
		return ""
	}
	dir, err := os.Readlink("/proc/" + strconv.Itoa(s.cmd.Process.Pid) + "/cwd")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(dir, " (deleted)")
}

// existing returns dir or the nearest directory above it that exists.
func existing(dir string) string {
	for dir != "/" && dir != "." && dir != "" {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return "/"
}

// shellEnv is the environment of a shell. There are no pagers: nobody turns their pages.
func shellEnv(c Config) []string {
	env := append(withoutKeys(c.Environ), "TERM=dumb", "PAGER=cat", "GIT_PAGER=cat", "MANPAGER=cat")
	if c.Credential != nil {
		if u, err := user.LookupId(strconv.Itoa(int(c.Credential.Uid))); err == nil {
			env = append(env, "HOME="+u.HomeDir, "USER="+u.Username, "LOGNAME="+u.Username)
		}
	}
	return env
}

// flushInput drops what was typed and not read.
func (s *shell) flushInput() {
	_ = unix.IoctlSetInt(int(s.slave.Fd()), unix.TCFLSH, unix.TCIFLUSH)
}
