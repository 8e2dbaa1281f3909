package tools

import (
	"context"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// opened returns tools in a new directory.
func opened(t *testing.T, change func(*Config)) (*Set, string) {
	t.Helper()
	dir := t.TempDir()
	// The start file of whoever runs the tests may take seconds for each shell.
	c := Config{
		WorkingDir: dir, StateDir: t.TempDir(), SoftTimeout: 2 * time.Second,
		Environ: append(os.Environ(), "HOME="+t.TempDir()),
	}
	if change != nil {
		change(&c)
	}
	s := Open(c)
	t.Cleanup(s.Close)
	return s, dir
}

func (s *Set) tool(name string) Tool {
	for _, one := range s.tools {
		if one.Definition().Name == name {
			return one
		}
	}
	return nil
}

// terminalSeen is a decoded observation.
type terminalSeen struct {
	Content []struct{ Text string }
	IsError bool `json:"is_error"`
	Command string
	Exit    *int `json:"exit_code"`
	Timeout bool
	Meta    Metadata `json:"metadata"`
	raw     json.RawMessage
}

func (o terminalSeen) out() string { return o.Content[0].Text }

// code is the exit code, -99 if it is null.
func (o terminalSeen) code() int {
	if o.Exit == nil {
		return -99
	}
	return *o.Exit
}

// run runs a tool as an engine does.
func run(t *testing.T, ctx context.Context, tool Tool, args any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	call, err := tool.Parse(string(b))
	if err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	raw, err := json.Marshal(tool.Run(ctx, call.Action))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

type args = map[string]any

func (s *Set) sh(t *testing.T, a args) terminalSeen {
	t.Helper()
	return s.shCtx(t, context.Background(), a)
}

func (s *Set) shCtx(t *testing.T, ctx context.Context, a args) terminalSeen {
	t.Helper()
	o := terminalSeen{raw: run(t, ctx, s.tool(TerminalName), a)}
	if err := json.Unmarshal(o.raw, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestTerminal_StateStays runs commands whose effects and results depend on each other.
func TestTerminal_StateStays(t *testing.T) {
	s, dir := opened(t, nil)
	for _, c := range []struct {
		command, out string
		code         int
	}{
		{"pwd", dir, 0},
		{"cd /; x=5; f() { echo f$1; }; declare -A m=([a]=1); false", "", 1},
		{"echo $? $x ${m[a]}; f 2; pwd", "1 5 1\nf2\n/", 0},
		{"echo a\necho b", "a\nb", 0},
		{"cat <<'E'\n$x \\n \t| é\nE", "$x \\n \t| é", 0},
		{`printf 'a\rb\n\033[31mred\033[0m\033]0;title\007 x\b\byz'`, "b\nredyz", 0},
		{"echo 'open", "", 2},
		{"exit_code() { return 7; }; exit_code", "", 7},
		{"# a comment", "", 0},
		{"echo out; echo err >&2; (exit 3)", "out\nerr", 3},
		{"sleep 100 & kill -9 %1; wait", "", 0},
		{"exec 2>/dev/null; PS1='$ '; PROMPT_COMMAND='echo mine'; echo still here", "still here", 0},
		{"set -x; echo traced; set +x", "traced", 0},
	} {
		o := s.sh(t, args{"command": c.command})
		out := o.out()
		if strings.HasPrefix(c.command, "echo 'open") || strings.HasPrefix(c.command, "sleep") {
			out = "" // bash's own words
		}
		if out != c.out && c.command[0] != 's' || o.code() != c.code || o.IsError || o.Timeout {
			t.Errorf("%q printed %q with %d, want %q with %d: %s", c.command, o.out(), o.code(), c.out, c.code, o.raw)
		}
	}
	o := s.sh(t, args{"command": "cd " + dir + "; sleep 100 &"})
	if *o.Meta.WorkingDir != dir || o.Meta.PID <= 0 || o.Meta.Hostname == nil ||
		*o.Meta.Username != "root" && os.Getuid() == 0 {
		t.Errorf("the metadata is %s", o.raw)
	}
	text := ForModel(o.raw)[0].Text
	if !strings.Contains(text, "[Current working directory: "+dir+"]") || !strings.Contains(text, "exit code 0") {
		t.Errorf("the model is shown %q", text)
	}
}

// TestTerminal_LongCommand types a command that is longer than a terminal's line and has every byte.
func TestTerminal_LongCommand(t *testing.T) {
	s, _ := opened(t, nil)
	text := strings.Repeat("x'\"\\é\t%s", 20_000)
	o := s.sh(t, args{"command": "cat <<'THE END' | md5sum\n" + text + "\nTHE END"})
	want := fmt.Sprintf("%x  -", md5.Sum([]byte(text+"\n")))
	if o.out() != want {
		t.Errorf("a long command printed %q, want %q", o.out(), want)
	}
	if _, err := s.tool(TerminalName).Parse(`{"command":"` + strings.Repeat("x", maxCommand+1) + `"}`); err == nil {
		t.Error("a command without bound is taken")
	}
}

// TestTerminal_Timeout ends commands that outlast their timeout: one that obeys SIGINT, one that
// ignores it, a loop that starts others, a loop of the shell that ignores it.
func TestTerminal_Timeout(t *testing.T) {
	s, dir := opened(t, nil)
	s.sh(t, args{"command": "v=1"})
	for command, code := range map[string]int{
		"sleep 1000": 130,
		`bash -c 'trap "" INT; echo deaf; while :; do sleep 0.1; done'`: 137,
		"while :; do sleep 0.05; done":                                  130,
		"while :; do :; done":                                           130,
	} {
		o := s.sh(t, args{"command": command, "timeout": 0.3})
		if o.code() != code || !o.Timeout || !strings.Contains(o.Meta.Suffix, "longer than its timeout of 0.3 seconds") {
			t.Errorf("%q: %s", command, o.raw)
		}
		if o := s.sh(t, args{"command": "echo $v"}); o.out() != "1" {
			t.Errorf("the shell after %q: %s", command, o.raw)
		}
	}
	o := s.sh(t, args{"command": "cd /; trap '' INT; while :; do :; done", "timeout": 0.3})
	if !o.Timeout || !o.IsError || !strings.Contains(o.Meta.Suffix, "the shell was replaced") {
		t.Errorf("a shell that ignores everything: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "pwd; echo $v"}); o.out() != dir {
		t.Errorf("the new shell: %s", o.raw)
	}
}

// TestTerminal_KilledJob ends a job that ignores SIGINT, in many shells at once, so that some are slow
// to take note: the exit code is the job's, and the rest of the command is not run.
func TestTerminal_KilledJob(t *testing.T) {
	const deaf = `bash -c 'trap "" INT; echo deaf; while :; do sleep 0.1; done'; touch rest`
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			s, dir := opened(t, nil)
			o := s.sh(t, args{"command": deaf, "timeout": 1})
			if o.code() != 137 || !o.Timeout || !strings.HasPrefix(o.out(), "deaf") || exists(dir+"/rest") {
				t.Errorf("shell %d, the rest was run: %v: %s", i, exists(dir+"/rest"), o.raw)
			}
		})
	}
	all.Wait()
}

// TestTerminal_InterruptAtThePrompt interrupts the shell when a command has just ended. The prompt
// that follows is not the end of the next command.
func TestTerminal_InterruptAtThePrompt(t *testing.T) {
	s, _ := opened(t, nil)
	for i := range 10 {
		s.sh(t, args{"command": "true"})
		s.terminal.shell.interrupt() // as when the command's end and its time-out coincide
		_ = s.terminal.shell.cmd.Process.Signal(syscall.SIGINT)
		if o := s.sh(t, args{"command": "sleep 0.02; echo " + strconv.Itoa(i)}); o.out() != strconv.Itoa(i) || o.code() != 0 {
			t.Fatalf("command %d after an interrupt: %s", i, o.raw)
		}
	}
}

// TestTerminal_ShellEnds ends the shell in several ways; each is told, and a new one is there.
func TestTerminal_ShellEnds(t *testing.T) {
	s, _ := opened(t, nil)
	for command, code := range map[string]int{
		"exit 3":                       3,
		"kill -9 $$":                   -1,
		"set -e; false; echo not this": 1,
		"exec sh -c 'exit 4'":          4,
	} {
		o := s.sh(t, args{"command": command})
		if o.code() != code || !o.IsError || !strings.Contains(o.Meta.Suffix, "The shell has ended") {
			t.Errorf("%q: %s", command, o.raw)
		}
		if o := s.sh(t, args{"command": "echo new; set +e"}); o.out() != "new" || o.code() != 0 {
			t.Errorf("after %q: %s", command, o.raw)
		}
	}
	// Between two calls.
	o := s.sh(t, args{"command": "echo $$; (sleep 0.2; kill -9 $$) & disown"})
	pid, _ := strconv.Atoi(strings.Fields(o.out())[0])
	until(t, "the shell's end", func() bool { _, _, there := stat(pid); return !there })
	if o := s.sh(t, args{"command": "echo new"}); o.out() != "new" ||
		!strings.Contains(o.Meta.Prefix, "replaced by a new one") {
		t.Errorf("after the end between calls: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "", "reset": true}); o.IsError || !strings.Contains(o.out(), "has been reset") {
		t.Errorf("reset: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "echo x", "reset": true}); o.out() != "x" {
		t.Errorf("reset with a command: %s", o.raw)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.After(20 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s did not come", what)
		}
	}
}

// TestTerminal_Interrupt cancels calls; each returns and the shell goes on.
func TestTerminal_Interrupt(t *testing.T) {
	s, _ := opened(t, nil)
	s.sh(t, args{"command": "v=1"})
	for _, command := range []string{
		"sleep 1000",
		`bash -c 'trap "" INT TERM HUP; while :; do sleep 0.1; done'`,
		"yes",
		"cat",
	} {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(200*time.Millisecond, cancel)
		o := s.shCtx(t, ctx, args{"command": command})
		if !strings.Contains(o.Meta.Suffix, "interrupted by the user") || o.Timeout {
			t.Errorf("%q: %s", command, o.raw)
		}
		if o := s.sh(t, args{"command": "echo $v"}); o.out() != "1" {
			t.Errorf("the shell after %q: %s", command, o.raw)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if o := s.shCtx(t, ctx, args{"command": "echo x"}); o.out() == "x" {
		t.Errorf("a cancelled call ran: %s", o.raw)
	}
}

// TestTerminal_DaemonsKeepTheTerminal starts processes that outlive their command: a job, one in a
// session of its own, one that keeps the terminal open. The shell goes on, and Close ends them all.
func TestTerminal_DaemonsKeepTheTerminal(t *testing.T) {
	s, dir := opened(t, nil)
	o := s.sh(t,
		args{
			"command": `sleep 1000 & nohup sleep 1001 >/dev/null 2>&1 & setsid sleep 1002 & setsid sh -c 'sleep 1003 & sleep ` +
				`1004' </dev/null >/dev/null 2>&1 & (trap "" HUP TERM INT; exec sleep 1005) & disown -a; echo ok`,
		})
	if !strings.HasSuffix(o.out(), "ok") || o.code() != 0 {
		t.Fatalf("starting daemons: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "echo on; jobs"}); o.out() != "on" {
		t.Errorf("the next command: %s", o.raw)
	}
	term := s.terminal.shell
	until(t, "every daemon", func() bool { return len(tree(term.cmd.Process.Pid, term.cookie)) >= 8 })
	s.Close()
	if left := tree(term.cmd.Process.Pid, term.cookie); len(left) > 0 {
		t.Errorf("%d processes are left", len(left))
	}
	if o := s.sh(t, args{"command": "echo x"}); !o.IsError {
		t.Errorf("a closed terminal ran: %s", o.raw)
	}
	_ = dir
}

// TestTerminal_MarkerCantBeForged prints what looks like markers, and the shell's own functions.
func TestTerminal_MarkerCantBeForged(t *testing.T) {
	s, _ := opened(t, nil)
	o := s.sh(t,
		args{
			"command": `printf '\033]%s;0;1;/x\a' AAAAAAAAAAAAAAAAAAAAAAAAAA; declare -f; set; env; ` +
				`cat /proc/$$/environ /proc/$$/cmdline | tr '\0' '\n'; sleep 0.3; echo the end; false`,
		})
	if o.code() != 1 || !strings.HasSuffix(o.out(), "the end") {
		t.Errorf("the end came early: %d %.300q", o.code(), o.out())
	}
	// A program sees neither the marker nor the file that has it.
	nonce := strings.Trim(string(s.terminal.shell.out.marker), "\x1b];")
	o = s.sh(t, args{"command": "sh -c 'set; env; tr \\\\0 \\\\n < /proc/$PPID/environ; ls -l /proc/$PPID/fd'"})
	if nonce == "" || strings.Contains(o.out(), nonce) {
		t.Errorf("a program can read the marker: %s", o.out())
	}
}

// TestTerminal_Secrets exports secrets on use only and masks them everywhere.
func TestTerminal_Secrets(t *testing.T) {
	values := map[string]string{"MY_TOKEN": "s3cr'et\"\\value\nwith two lines", "OTHER": "other-value", "SHORT": "x"}
	s, _ := opened(t, func(c *Config) {
		c.SoftTimeout = 1500 * time.Millisecond // a busy machine may be silent for less
		c.Secrets = func() map[string]string { return values }
		c.Environ = append(c.Environ, "OH_SESSION_API_KEYS_0=the-key", "OH_SECRET_KEY=the-key", "SESSION_API_KEY=the-key")
	})
	o := s.sh(t, args{"command": "env | grep -c -e MY_TOKEN_X -e the-key; env | grep ^OTHER"})
	if o.out() != "0\nOTHER=<secret-hidden>" {
		t.Errorf("the environment: %s", o.raw)
	}
	if o := s.sh(t,
		args{
			"command": "echo ${MY_TOKENS-unset}; printf %s \"$MY_TOKEN\" | wc -c; printf %s \"$MY_TOKEN\"",
		}); o.out() != "unset\n"+strconv.Itoa(len(values["MY_TOKEN"]))+"\n<secret-hidden>" {
		t.Errorf("a secret: %s", o.raw)
	}
	// Byte by byte, and with the call's end in the middle.
	o = s.sh(t,
		args{
			"command": "v=$OTHER; for ((i=0; i<${#v}; i++)); do printf %s \"${v:i:1}\"; sleep 0.02; done; printf 'oth'; " +
				"sleep 3; printf 'er-value|'; printf other-valu",
		})
	if o.out() != "<secret-hidden>" || o.code() != -1 {
		t.Errorf("the first half: %s", o.raw)
	}
	for o = s.sh(t, args{"command": ""}); o.code() == -1 && o.out() == ""; {
		o = s.sh(t, args{"command": ""})
	}
	if o.out() != "<secret-hidden>|other-valu" {
		t.Errorf("the second half: %s", o.raw)
	}
	o = s.sh(t, args{"command": "echo other-value"})
	if strings.Contains(string(o.raw), "other-value") {
		t.Errorf("the command shows a secret: %s", o.raw)
	}
	values = map[string]string{"NEW_ONE": "new-value"}
	if o := s.sh(t, args{"command": "echo $NEW_ONE $OTHER"}); o.out() != "<secret-hidden> other-value" {
		t.Errorf("after a change of the secrets: %s", o.raw)
	}
}

// TestTerminal_DiskFull runs on a full disk, and frees it.
func TestTerminal_DiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	full := t.TempDir()
	if err := syscall.Mount("none", full, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a tmpfs can't be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(full, syscall.MNT_DETACH) })
	s, _ := opened(t, func(c *Config) { c.WorkingDir = full; c.Environ = append(c.Environ, "TMPDIR="+full, "HOME="+full) })
	o := s.sh(t, args{"command": "head -c 100000 /dev/zero > fill; echo x > more; rm fill && echo free"})
	if !strings.Contains(o.out(), "No space left") || !strings.HasSuffix(o.out(), "free") {
		t.Errorf("a full disk: %s", o.raw)
	}
}

// TestTerminal_StartFile survives a start file that ends, hangs on input or breaks the shell.
func TestTerminal_StartFile(t *testing.T) {
	for _, rc := range []string{
		"exit 3",
		"exec false",
		"PS1=x; PROMPT_COMMAND='echo p'; set -u; alias l='echo alias'",
		"echo noise; read x </dev/null",
	} {
		home := t.TempDir()
		if err := os.WriteFile(home+"/.bashrc", []byte(rc), 0o600); err != nil {
			t.Fatal(err)
		}
		s, _ := opened(t, func(c *Config) { c.Environ = append(c.Environ, "HOME="+home) })
		if o := s.sh(t, args{"command": "echo works"}); o.out() != "works" || o.code() != 0 {
			t.Errorf("with %q: %s", rc, o.raw)
		}
		s.Close()
	}
}

// TestTerminal_Parallel makes calls from many goroutines: they run one after the other.
func TestTerminal_Parallel(t *testing.T) {
	s, _ := opened(t, nil)
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			want := strconv.Itoa(i)
			if o := s.sh(t, args{"command": "n=" + want + "; echo $n; sleep 0.01; echo $n"}); o.out() != want+"\n"+want {
				t.Errorf("call %d: %s", i, o.raw)
			}
		})
	}
	all.Wait()
}

// TestTerminal_CloseEndsACall closes the tools while a command runs.
func TestTerminal_CloseEndsACall(t *testing.T) {
	s, dir := opened(t, nil)
	done := make(chan terminalSeen, 1)
	go func() { done <- s.sh(t, args{"command": "touch begun; sleep 1000"}) }()
	until(t, "the command", func() bool { return exists(dir + "/begun") })
	s.Close()
	<-done
}

// TestTerminal_TheShellIsSpoilt closes the shell's files, stops it and changes the terminal's modes:
// each call returns with a result, and the next shell works.
func TestTerminal_TheShellIsSpoilt(t *testing.T) {
	var all sync.WaitGroup
	for _, command := range []string{
		"exec <&-", "exec >&- 2>&-", "exec </dev/null >/dev/null 2>&1", "kill -STOP $$", "stty raw -echo; stty intr x",
		"exec bash --norc",
		"enable -n eval printf read; unset PROMPT_COMMAND", "exec 0</dev/zero", "trap exit DEBUG",
	} {
		all.Go(func() {
			s, _ := opened(t, func(c *Config) { c.SoftTimeout = time.Second })
			o := s.sh(t, args{"command": command})
			if o.raw == nil || len(o.Content) != 1 {
				t.Errorf("%q: %s", command, o.raw)
			}
			for range 3 { // the first ones may be told that the shell has ended, or that it hangs
				if o = s.sh(t, args{"command": "echo works"}); o.out() == "works" {
					break
				}
			}
			if o = s.sh(t, args{"command": "echo new; stty -a | grep -c 'intr = ^C'", "reset": true}); o.out() != "new\n1" ||
				o.code() != 0 {
				t.Errorf("the new shell after %q: %s", command, o.raw)
			}
		})
	}
	all.Wait()
}
