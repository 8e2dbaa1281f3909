package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// door makes one of this machine's servers reachable for containers on docker's bridge.
type door struct {
	net.Listener
	to atomic.Pointer[string]
}

func newDoor(t *testing.T, to string) *door {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "docker", "network", "inspect", "bridge", "--format",
		"{{(index .IPAM.Config 0).Gateway}}").Output()
	if err != nil {
		t.Fatal(err)
	}
	d := &door{}
	if d.Listener, err = net.Listen("tcp", net.JoinHostPort(strings.TrimSpace(string(out)), "0")); err != nil {
		t.Fatal(err)
	}
	d.to.Store(&to)
	t.Cleanup(func() { _ = d.Close() })
	go d.serve()
	return d
}

func (d *door) serve() {
	for {
		in, err := d.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", *d.to.Load())
			if err != nil {
				return // a node that is dead
			}
			defer out.Close()
			go func() { _, _ = io.Copy(out, in); _ = out.(*net.TCPConn).CloseWrite() }() //nolint:forcetypeassert // "tcp"
			_, _ = io.Copy(in, out)
		}()
	}
}

func (d *door) url() string { return "http://" + d.Addr().String() }

func hostOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// serverAttack tries, as a command of an agent, what only the agent server may do. It prints what it could.
const serverAttack = `[ -e /.dockerenv ] || { echo not in a container; exit 1; }
id -un
for p in /proc/[0-9]*; do
  [ "$(stat -c %u $p 2>/dev/null)" = 0 ] || continue
  echo server
  for f in environ mem maps; do head -c1 $p/$f >/dev/null 2>&1 && echo reads $p/$f; done
  ls $p/fd >/dev/null 2>&1 && echo lists $p/fd
  kill -0 ${p#/proc/} 2>/dev/null && echo kills $p
  python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) != 0)' ${p#/proc/} && echo traces $p
done
ls /workspace/conversations >/dev/null 2>&1 && echo lists conversations
mv /workspace/conversations /workspace/c 2>/dev/null && echo moves conversations
rm -rf /workspace/bash_events 2>/dev/null && echo removes bash_events
env | grep -iE 'session|secret_key|canary' | cut -d= -f1
su -c id root </dev/null >/dev/null 2>&1 && echo is root
true`

// imageScript is workScript for the shells of all presets' agents.
func imageScript() *modeltest.Script {
	s := workScript()
	const mend = "sed -i s/helo/hello/ greet.sh && sh test.sh"
	first := []*modeltest.Story{{When: modeltest.When{User: "attack", Tool: "terminal"}, Answers: []modeltest.Answer{
		modeltest.Calls(modeltest.Tool("terminal",
			map[string]any{"command": "bash attack.sh > attack.txt 2>&1"})), modeltest.Text("Tried."),
	}}}
	// Before the story of titles: Codex speaks of them to its model.
	for tool, argument := range map[string]string{
		"Bash":              "command",
		"run_shell_command": "command",
		"exec_command":      "cmd",
	} {
		first = append(first, &modeltest.Story{When: modeltest.When{User: "fix", Tool: tool}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool(tool,
				map[string]any{argument: mend, "description": "mend and test"})), modeltest.Text("The test passes."),
		}})
	}
	s.Stories = append(first, s.Stories...)
	return s
}

// sandboxImage makes the image of `make sandbox-image` with today's agent server.
func sandboxImage(t *testing.T) string {
	t.Helper()
	testcluster.Need(t, "image", local.DockerReachable(t.Context()))
	agent := filepath.Join(t.TempDir(), "sandbox-agent")
	if err := local.BuildGo(t.Context(), "./cmd/sandbox-agent", agent); err != nil {
		t.Fatal(err)
	}
	tag := fmt.Sprintf("bivouac/sandbox-agent:test-%d", os.Getpid())
	there, err := local.BuildSandboxImage(t.Context(), agent, tag)
	if err != nil {
		t.Fatal(err)
	}
	testcluster.Need(t, "image", there)
	t.Cleanup(func() {
		if err := local.RemoveImage(tag); err != nil {
			t.Error(err)
		}
	})
	return tag
}

// TestImage is TestWork in containers of the sandbox image, with the shipped docker spec: every
// preset's agent works in it, and no command of an agent reaches the agent server.
func TestImage(t *testing.T) {
	image := sandboxImage(t)
	spec, err := deploy.Files.ReadFile("config/stack-docker.hcl")
	if err != nil {
		t.Fatal(err)
	}
	var doors []*door
	var urls []string
	for range 3 {
		doors = append(doors, newDoor(t, ""))
		urls = append(urls, doors[len(doors)-1].url())
	}
	// The cluster knows a spec by the beginning of its text.
	_, text, _ := strings.Cut(string(spec), `spec "docker" {`)
	f := testcluster.Start(t, testcluster.Options{
		Specs:  strings.ReplaceAll(`spec "docker" {`+text, `"IMAGE"`, fmt.Sprintf("%q", image)),
		Config: fmt.Sprintf("sandboxes {\n  api_urls = [\"%s\"]\n}\n", strings.Join(urls, `", "`)),
	})
	f.SetDefault(t, "docker")
	for i, n := range f.Nodes {
		to := hostOf(t, n.Base)
		doors[i].to.Store(&to)
	}
	f.Leader(t).Sure(t, http.MethodPut, "/api/v1/operator/config",
		map[string]any{"llm": map[string]any{"hosts": []string{"localhost"}}}, nil)
	w := &work{t: t, f: f, model: modeltest.New(t, imageScript())}
	w.Client = testcluster.Client{Base: f.Followers(t)[0].Base, Key: f.Nodes[0].NewKey(t, "ada")}
	w.Sure(t, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/scripted", "llm_api_key": workModelKey, "llm_base_url": w.model.BaseURL()}, nil)

	w.startAlone(map[string]any{})
	w.leaderDies()
	w.confirms()
	w.isAskedAgain()
	w.attacks()
	w.keepsNoKey()
	w.presetsWork()
}

// startAlone starts a conversation without a repository, and makes one in its directory. A git server
// that containers reach would need TLS.
func (w *work) startAlone(request map[string]any) {
	w.t.Helper()
	var task testcluster.StartTask
	w.Sure(w.t, http.MethodPost, "/api/v1/app-conversations", request, &task)
	task = w.AwaitTask(w.t, task.ID)
	w.sandbox, w.conversation = *task.SandboxID, *task.ConversationID
	var info struct {
		Workspace struct {
			WorkingDir string `json:"working_dir"`
		}
	}
	w.inside(http.MethodGet, w.at(""), nil, &info)
	if w.dir = info.Workspace.WorkingDir; !strings.HasPrefix(w.dir, "/workspace/") {
		w.t.Fatalf("the working directory is %q, so the sandbox is no container", w.dir)
	}
	w.shell(`rm -rf .git && git init -q -b main . && echo 'echo helo' >greet.sh &&
echo '[ "$(sh greet.sh)" = hello ] && echo passed || { echo failed; exit 1; }' >test.sh &&
git add . && git -c user.name=t -c user.email=t@example.org commit -qm first`)
}

// attacks lets the agent try to reach the agent server.
func (w *work) attacks() {
	w.t.Helper()
	w.shell("cat > attack.sh <<'END'\n" + serverAttack + "\nEND")
	w.say("attack the server")
	w.becomes("finished")
	if got := w.shell("sort -u attack.txt"); got != "agent\nserver" {
		w.t.Errorf("an agent's command could: %s", got)
	}
}

// presetsWork lets the agent of each preset mend the repository, in conversations of their own.
func (w *work) presetsWork() {
	w.t.Helper()
	for _, p := range preset.All() {
		begin := time.Now()
		w.startAlone(map[string]any{"acp_server": p.ID, "sandbox_id": w.sandbox})
		w.say("fix the greeting")
		w.becomes("finished")
		w.says("The test passes.")
		if got := w.shell("sh test.sh; git status --short; stat -c %U greet.sh"); got != "passed\n M greet.sh\nagent" {
			w.t.Errorf("%s leaves %q", p.ID, got)
		}
		w.t.Logf("%s: %s from the start; %s", p.ID, time.Since(begin).Round(time.Millisecond), w.memory())
	}
}

// memory is what the processes of the sandbox's agents hold, by name.
func (w *work) memory() string {
	w.t.Helper()
	return strings.Join(strings.Fields(w.shell(`for p in /proc/[0-9]*; do
  [ -r $p/smaps_rollup ] && m=$(awk '/^Pss:/ { print int($2 / 1024) }' $p/smaps_rollup 2>/dev/null) && [ "${m:-0}" -gt 20 ] &&
    echo "$(cat $p/comm)=$m""MB"
done; true`)), " ")
}
