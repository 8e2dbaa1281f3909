package starttask

import (
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
	if strings.Contains(script, "CANARY") || !strings.Contains(script, "'https://github.com/octo/app.git'") || !strings.Contains(script, `--branch 'it'\''s/main'`) {
		t.Errorf("script:\n%s", script)
	}
	for path, content := range w.agents.uploads {
		if content != "https://x-access-token:GITHUBCANARY@github.com\n" || !strings.Contains(script, path) {
			t.Errorf("upload %s: %q", path, content)
		}
	}
	c := w.store.View().Conversation(taskUser, task.ConversationID)
	if c.Tags["repo_name"] != "octo/app" || w.agents.created[agent.DashedID(c.ID)].Workspace.WorkingDir != "/ws/"+c.SandboxID+"/project/app" {
		t.Errorf("conversation %+v", c)
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
	if out, err := sh(`git config --global user.name x; git config --global user.email x@y; git init -q -b main ` + quote(origin) +
		` && cd ` + quote(origin) + ` && echo hi > README && git add . && git commit -qm one`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := filepath.Join(home, "the project")
	job := gitJob{dir: dir, remote: "file://" + origin, target: "app", tmp: ".tmp", newBranch: "work", credential: filepath.Join(home, "cred")}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if out, err := sh("touch " + quote(job.credential) + "\n" + job.script()); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if out, err := sh(gitJob{dir: dir, userName: "Ada", userEmail: "a@b"}.script()); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	out, err := sh("cd " + quote(dir) + " && ls -A && cat app/README && git -C app branch --show-current && git config --global user.name && ls " + quote(job.credential))
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
