package process

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/access"
)

const (
	taskMode   = "process-test-task"
	parentMode = "process-test-parent"
)

// TestMain lets this binary act as the tasks of its own tests, and as a program with a Runner
// that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == taskMode {
		os.Exit(task(os.Args[2], os.Args[3:]))
	}
	if len(os.Args) > 2 && os.Args[1] == parentMode {
		os.Exit(parent(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

// task is a sandbox's task; --host H --port P are the last arguments.
func task(mode string, args []string) int {
	workspace := os.Getenv("HOME")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch mode {
	case "crash":
		fmt.Println("the last words, key " + os.Getenv("OH_SESSION_API_KEYS_0"))
		return 3
	case "crash-once":
		if err := os.Mkdir(filepath.Join(workspace, "crashed"), 0o700); err == nil {
			return 4
		}
	case "orphan":
		child := exec.Command("sleep", "1000")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			return 5
		}
		if err := os.WriteFile(filepath.Join(workspace, "orphan"), []byte(strconv.Itoa(child.Process.Pid)),
			0o600); err != nil {
			return 6
		}
	case "talk":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
	case "stubborn":
		ctx = context.Background() // SIGTERM ends nothing
	case "loud":
		line := make([]byte, 1023)
		for i := range line {
			line[i] = 'x'
		}
		for range 1024 {
			fmt.Println(string(line))
		}
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(args[1], args[3]))
	if err != nil {
		fmt.Println(err)
		return 7
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if words := r.URL.Query().Get("say"); words != "" {
			fmt.Println(words)
		}
		fmt.Fprint(w, os.Getenv(r.URL.Query().Get("env")))
	}), ReadHeaderTimeout: time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	_ = srv.Serve(ln)
	return 0
}

// parent is a program that starts one sandbox and waits for SIGKILL.
func parent(dir, mode string) int {
	r, err := New(testConfig(dir, mode))
	if err == nil {
		err = r.Start(context.Background(), testJob("s1"))
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("started")
	select {}
}

type fakeSecrets map[string]map[string]string

func (f fakeSecrets) Read(_ context.Context, ref fsm.SecretRef) (map[string]string, error) {
	if e, ok := f[ref.Path]; ok {
		return e, nil
	}
	return nil, fsm.Errorf(fsm.CodeSecretStore, "the secret store is sealed")
}

const testKey = "0123456789abcdefKEYCANARY"

func testConfig(dir, mode string) Config {
	return Config{
		Dir: dir, AgentBinary: "/proc/self/exe", AgentArgs: []string{taskMode, mode},
		Secrets:   fakeSecrets{"sandboxes/x/session": {"key": testKey, "secret_key": "SEALCANARY"}},
		StopGrace: 2 * time.Second, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond,
	}
}

func testJob(id string) scheduler.Job {
	return scheduler.Job{
		SandboxID: id, ClusterID: "c1", KeyRef: fsm.SecretRef{Path: "sandboxes/x/session", Version: 1},
		Template: fsm.Template{Driver: fsm.DriverProcess, Isolation: fsm.IsolationNone, WorkingDir: "project",
			Ports: map[string]int{
				fsm.PortAgentServer: 0,
				"WORKER_1":          0,
			},
			Env: map[string]string{"W": "${workspace}", "P": "${port.agent_server}", "GORACE": "atexit_sleep_ms=0"}},
	}
}

// nowJob is testJob with the sandbox's current modify index.
func nowJob(r *Runner, id string) scheduler.Job {
	job := testJob(id)
	job.ModifyIndex = r.look(id, job.ClusterID).ModifyIndex
	return job
}

func newRunner(t *testing.T, dir, mode string) *Runner {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(dir, mode)
	cfg.AgentBinary = self
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

// waitFor waits until cond holds, for at most a minute.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

// await waits until the observed sandbox fulfils cond.
func await(t *testing.T, r *Runner, id, what string, cond func(scheduler.Observed) bool) scheduler.Observed {
	t.Helper()
	var o scheduler.Observed
	waitFor(t, what, func() bool { o = r.look(id, "c1"); return cond(o) })
	return o
}

// client keeps no connections, so that no goroutine leaks.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

// ask reads an environment variable of the running task, "" if the task does not respond.
func ask(o scheduler.Observed, name string) string {
	resp, err := client.Get(access.AgentURL(o.Placement) + "/?env=" + name)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b := make([]byte, 4096)
	n, _ := resp.Body.Read(b)
	return string(b[:n])
}

func answers(o scheduler.Observed) bool {
	return o.Placement != nil && ask(o, "OH_SESSION_API_KEYS_0") == testKey
}

func pidOf(t *testing.T, r *Runner, id string) int {
	t.Helper()
	st := r.sandboxes[id].snapshot()
	if st.Run == nil || st.Run.PID == 0 {
		t.Fatal("the task's number is not written down")
	}
	return st.Run.PID
}

// alive reports whether the process runs. A zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(after, "Z")
}
