package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestReadme_Session builds the program, starts `bivouac dev` in an empty folder and the model of
// the README's block "sh model". Then it runs the blocks "sh session" in order, in one shell that
// stops at the first failure.
func TestReadme_Session(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	script := blocks(string(readme), "sh session")
	if strings.Count(script, "api ") < 8 {
		t.Fatalf("the README's session has shrunk to:\n%s", script)
	}
	base, script := freePorts(t, script)

	home := t.TempDir()
	bivouac := build(t, filepath.Join(home, "bin", "bivouac"), "./cmd/bivouac")
	dev := startDev(t, home, bivouac, base)
	script = startModel(t, blocks(string(readme), "sh model"), script)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	shell.Dir = home
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("the README's session failed: %v\n%s\nbivouac dev said:\n%s", err, out, dev.output())
	}
	for _, want := range []string{`"llm_api_key_set":true`, `"status":"PAUSED"`, `"status":"READY"`,
		`"stdout":"hello from `, `{"success":true}`,
		`"execution_status":"finished"`, `"text":"passed"`, `greet.sh says hello, and its test passes.`,
		"agent  calls finish"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the session's output lacks %s:\n%s", want, out)
		}
	}
	checkRun(t, blocks(string(readme), "text run"), string(out))
	for _, key := range []string{"sk-example", "sk-demo"} {
		if strings.Contains(string(out), key) {
			t.Errorf("the LLM key %s came back in an answer", key)
		}
	}
	dev.interrupt(t)
}

// checkRun compares what `bivouac run` printed with what the README shows, but for the conversation.
func checkRun(t *testing.T, shown, printed string) {
	t.Helper()
	conversation := regexp.MustCompile(`(?m)^conversation [0-9a-f]{32}$`)
	if want := conversation.ReplaceAllString(shown, conversation.FindString(printed)); want == "" ||
		!strings.Contains(printed, want) {
		t.Errorf("bivouac run does not print\n%s\nbut\n%s", want, printed)
	}
}

// blocks joins the fenced blocks with the info string.
func blocks(markdown, info string) string {
	var script strings.Builder
	inside := false
	for line := range strings.Lines(markdown) {
		switch {
		case strings.TrimSpace(line) == "```"+info:
			inside = true
		case strings.HasPrefix(line, "```"):
			inside = false
		case inside:
			script.WriteString(line)
		}
	}
	return script.String()
}

// startModel runs the block that starts the scripted model, on a free port, and returns the session
// with that port.
func startModel(t *testing.T, block, session string) string {
	t.Helper()
	const port = "127.0.0.1:8499"
	address := testcluster.FreeAddress(t)
	if !strings.Contains(block, port) || !strings.Contains(session, port) {
		t.Fatalf("the README names no model at %s:\n%s", port, block)
	}
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", strings.ReplaceAll(block, port, address))
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // go run is its parent
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	testcluster.Eventually(t, "the model answers", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return strings.ReplaceAll(session, port, address)
}

// freePorts returns the first of three free HTTP ports, the README's if they are free, and the
// script with these ports.
func freePorts(t *testing.T, script string) (int, string) {
	t.Helper()
	for base := 8440; base < 9400; base += 37 {
		if allFree(base, base+10, base+20) {
			for i := range 3 {
				script = strings.ReplaceAll(script, fmt.Sprintf("127.0.0.1:%d", 8440+10*i), fmt.Sprintf("127.0.0.1:%d", base+10*i))
			}
			return base, script
		}
	}
	t.Fatal("no three free ports")
	return 0, ""
}

func allFree(ports ...int) bool {
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// build compiles one of our programs and returns its path.
func build(t *testing.T, out, pkg string) string {
	t.Helper()
	if err := local.BuildGo(t.Context(), pkg, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// program is a running command.
type program struct {
	cmd  *exec.Cmd
	log  string
	done chan error
}

// startDev starts `bivouac dev` and returns when dev.json says that all nodes
// are ready.
func startDev(t *testing.T, home, bivouac string, port int) *program {
	t.Helper()
	p := &program{log: filepath.Join(home, "dev.out"), done: make(chan error, 1)}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.cmd = exec.Command(bivouac, "dev", "--http-port", fmt.Sprint(port))
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = home, out, out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	ready := filepath.Join(home, ".bivouac", "dev.json")
	testcluster.Eventually(t, "bivouac dev is ready", func() error {
		select {
		case err := <-p.done:
			t.Fatalf("bivouac dev ended: %v\n%s", err, p.output())
		default:
		}
		_, err := os.Stat(ready)
		return err
	})
	return p
}

// output returns what the program has printed so far.
func (p *program) output() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// interrupt sends SIGINT like Ctrl-C. The program must end with success and leave no process.
func (p *program) interrupt(t *testing.T) {
	t.Helper()
	var children []*process.Process
	for _, pid := range descendants(t, p.cmd.Process.Pid) {
		if child, err := process.NewProcess(int32(pid)); err == nil {
			children = append(children, child)
		}
	}
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.done:
		if err != nil {
			t.Errorf("after Ctrl-C bivouac dev ended with %v\n%s", err, p.output())
		}
	case <-time.After(time.Minute):
		t.Fatalf("bivouac dev does not end a minute after Ctrl-C\n%s", p.output())
	}
	// The kernel kills the children with their parent. Process 1 may reap them later, so a zombie
	// has ended.
	err := testcluster.Await(5*time.Second, func() error {
		for _, child := range children {
			is, err := child.IsRunning() // false if the id is another process's by now
			state, _ := child.Status()
			if err == nil && is && !slices.Contains(state, process.Zombie) {
				line, _ := child.Cmdline()
				return fmt.Errorf("process %d is still there: %s (%v)", child.Pid, line, state)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("after bivouac dev has ended: %v", err)
	}
}

// descendants lists the children of a process, recursively.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	var all []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tasks {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		words := bufio.NewScanner(bytes.NewReader(b))
		words.Split(bufio.ScanWords)
		for words.Scan() {
			var child int
			if _, err := fmt.Sscan(words.Text(), &child); err == nil {
				all = append(append(all, child), descendants(t, child)...)
			}
		}
	}
	return all
}
