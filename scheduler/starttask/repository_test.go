package starttask

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

func TestStartTask_CredentialIsNeitherInCommandNorURL(t *testing.T) {
	w := newTaskWorld(t)
	w.everything()
	task := w.task("1", func(b *fsm.StartTaskCreateBody) {
		b.Request.SelectedRepository, b.Request.SelectedBranch = ptr("octo/app"), ptr("it's/main")
	})
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Fatalf("task %+v", got)
	}
	script := w.agents.commands[0]
	if strings.Contains(script, "CANARY") || !strings.Contains(script, "'https://github.com/octo/app.git'") ||
		!strings.Contains(script, `--branch 'it'\''s/main'`) {
		t.Errorf("script:\n%s", script)
	}
	if env := w.agents.envs[0]; env[envGitUser] != "x-access-token" || env[envGitPassword] != "GITHUBCANARY" ||
		len(w.agents.uploads) != 0 {
		t.Errorf("environment %v, uploads %v", env, w.agents.uploads)
	}
	c := w.store.View().Conversation(taskUser, task.ConversationID)
	if c.Tags["repo_name"] != "octo/app" ||
		w.agents.created[agent.DashedID(c.ID)].Workspace.WorkingDir != "/ws/"+c.SandboxID+"/project/app" {
		t.Errorf("conversation %+v", c)
	}
}

// A server that passes no environment gets the credential through a file in memory, which the script
// removes.
func TestStartTask_CredentialWithoutEnvironment(t *testing.T) {
	w := newTaskWorld(t)
	w.everything()
	w.agents.respond = func(cmd agent.Command) agent.Output {
		if strings.Contains(cmd.Command, "exit 75") {
			return agent.Output{ExitCode: exitNoCredential}
		}
		return agent.Output{}
	}
	task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") })
	w.run(nil)
	if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
		t.Fatalf("task %+v", got)
	}
	for path, content := range w.agents.uploads {
		if content != "https://x-access-token:GITHUBCANARY@github.com\n" || !strings.HasPrefix(path, "/dev/shm/") ||
			!strings.Contains(w.agents.commands[1], "rm -f '\\''"+path) {
			t.Errorf("upload %s: %q, script:\n%s", path, content, w.agents.commands[1])
		}
	}
	if len(w.agents.uploads) != 1 {
		t.Errorf("uploads: %v", w.agents.uploads)
	}
}

func TestGitJob_ScriptRuns(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	home := t.TempDir()
	sh := func(script string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
		cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "GIT_ALLOW_PROTOCOL=file"}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	origin := filepath.Join(home, "it's origin.git")
	if out, err := sh(`git config --global user.name x; ` +
		`git config --global user.email x@y; git init -q -b main ` + quote(origin) +
		` && cd ` + quote(origin) + ` && echo hi > README && git add . && git commit -qm one`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := filepath.Join(home, "the project")
	job := gitJob{
		dir:            dir,
		remote:         remote{clone: "file://" + origin},
		target:         "app",
		tmp:            ".tmp",
		newBranch:      "work",
		credentialFile: filepath.Join(home, "cred"),
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if out, err := sh("touch " + quote(job.credentialFile) + "\n" + job.script()); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if out, err := sh(gitJob{dir: dir, userName: "Ada", userEmail: "a@b"}.script()); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	out, err := sh(
		"cd " + quote(dir) + " && ls -A && cat app/README && git -C app branch --show-current && git config " +
			"--global user.name && ls " + quote(job.credentialFile),
	)
	if err == nil {
		t.Error("the credential is still there")
	}
	if !strings.HasPrefix(out, "app\nhi\nwork\nAda\n") {
		t.Errorf("result:\n%s", out)
	}
	job.branch, job.target = "nothing", "app2"
	if out, err := sh(job.script()); err == nil || !strings.Contains(out, "nothing") {
		t.Errorf("a branch that is not there: %v: %s", err, out)
	}
	if out, err := sh("mkdir " + quote(dir+"/app3")); err != nil {
		t.Fatal(out)
	}
	job.target = "app3"
	if out, err := sh(job.script()); err == nil || !strings.Contains(out, "not a git repository") {
		t.Errorf("a directory in the way: %v: %s", err, out)
	}
}

// TestStartTask_ProjectSteps: what a project has decides which steps are taken.
func TestStartTask_ProjectSteps(t *testing.T) {
	w := newTaskWorld(t)
	w.agents.skills, w.agents.hooks = []byte(`[{"name":"style"}]`), []byte(`{"pre_tool_use":[]}`)
	w.agents.respond = func(cmd agent.Command) agent.Output {
		if strings.Contains(cmd.Command, "bivouac-setup") {
			return agent.Output{ExitCode: 3, Stdout: foundGitHooks + "\n"}
		}
		return agent.Output{Stdout: "\n" + foundSetup + "\n\n" + foundGitHooks + "\n"}
	}
	task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") })
	var steps []string
	stop := w.run(func(r *Runner) {
		r.step = func(_ context.Context, _ *fsm.StartTask, name string) { steps = append(steps, name) }
	})
	got := w.done(task.ID)
	stop()
	if got.Status != fsm.StartTaskReady {
		t.Fatalf("task %+v", got)
	}
	want := "prepare repository, advance RUNNING_SETUP_SCRIPT, read secrets, set up, " +
		"advance SETTING_UP_GIT_HOOKS, read secrets, " +
		"install git hooks, advance SETTING_UP_SKILLS, read secrets, load skills, advance STARTING_CONVERSATION"
	if all := strings.Join(steps, ", "); !strings.Contains(all, want) {
		t.Errorf("steps %s", all)
	}
	req := w.agents.created[agent.DashedID(task.ConversationID)]
	if string(req.AgentSettings.AgentContext.Skills) != `[{"name":"style"}]` ||
		string(req.HookConfig) != `{"pre_tool_use":[]}` {
		t.Errorf("request %+v", req)
	}
	for _, dir := range w.agents.projects {
		if !strings.HasSuffix(dir, "/project/app") {
			t.Errorf("asked for the project %s", dir)
		}
	}
}

// A project's skills that can't be had hold up no start.
func TestStartTask_SkillsFail(t *testing.T) {
	for name, fault := range map[string]error{
		"no such call": &agent.Error{Kind: agent.ErrRefused, Status: 404},
		"broken":       &agent.Error{Kind: agent.ErrUnavailable, Status: 500},
		"nonsense":     &agent.Error{Kind: agent.ErrBadAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTaskWorld(t)
			w.agents.project = fault
			task := w.task("1", func(b *fsm.StartTaskCreateBody) { b.Request.SelectedRepository = ptr("octo/app") })
			w.run(nil)
			if got := w.done(task.ID); got.Status != fsm.StartTaskReady {
				t.Fatalf("task %+v", got)
			}
		})
	}
}
