package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSandboxes_OfAUser: a user's key runs commands in an own sandbox, copies files both ways, reads
// its log, and has no part in another's.
func TestSandboxes_OfAUser(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	env, c := r.user(t, "ada")
	others, _ := r.user(t, "bob")
	id, dir := c.startSandbox(t), t.TempDir()
	c.awaitSandbox(t, id, "RUNNING")
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte("copied\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inside := id + ":" + strings.TrimSpace(inSandbox(t, c.awaitSandbox(t, id, "RUNNING"), "pwd")) + "/file"
	run := func(env map[string]string, want int, text string, args ...string) {
		t.Helper()
		code, stdout, stderr := runCommandWith(t, env, "piped\n", args...)
		if code != want || !strings.Contains(stdout+stderr, text) {
			t.Errorf("%v: exit %d, want %d with %q\n%s%s", args, code, want, text, stdout, stderr)
		}
	}
	run(env, exitOK, id+"  ", "sandboxes", "list")
	run(env, exitOK, "status   RUNNING\n", "sandboxes", "show", id)
	run(env, exitOK, "it's  one\n", "sandboxes", "exec", id, "--", "printf", "%s  %s\n", "it's", "one")
	run(env, 7, "", "sandboxes", "exec", id, "exit 7")
	run(env, exitOK, `"stderr": "wrong\n"`, "sandboxes", "exec", "--json", id, "echo wrong >&2")
	run(env, exitOK, "is copied to", "sandboxes", "cp", in, inside)
	run(env, exitOK, "is copied to "+out, "sandboxes", "cp", inside, out)
	if text, err := os.ReadFile(out); string(text) != "copied\n" {
		t.Errorf("the copy is %q, %v", text, err)
	}
	run(env, exitOK, "is copied to", "sandboxes", "cp", "-", inside)
	run(env, exitOK, "piped\n", "sandboxes", "cp", inside, "-")
	run(env, exitFailed, "File not found", "sandboxes", "cp", inside+".none", "-")
	run(env, exitOK, "", "sandboxes", "logs", id)
	run(env, exitOK, "/sandboxes/"+id+"/", "sandboxes", "open", "--json", id, "AGENT_SERVER")
	run(env, exitFailed, "has no page of NONE", "sandboxes", "open", id, "NONE")
	run(env, exitOK, id+"\tRUNNING", "__complete", "sandboxes", "exec", "")
	for _, args := range [][]string{
		{"show", id}, {"exec", id, "true"}, {"logs", id}, {"open", id}, {"pause", id}, {"delete", "--yes", id},
		{"cp", inside, "-"},
	} {
		run(others, exitFailed, "", append([]string{"sandboxes"}, args...)...)
	}
	run(env, exitOK, "pauses", "sandboxes", "pause", id)
	c.awaitSandbox(t, id, "PAUSED")
	run(env, exitOK, "piped\n", "sandboxes", "exec", id, "cat file")
	run(env, exitOK, "is deleted", "sandboxes", "delete", "--yes", id)
	run(env, exitFailed, "you have no sandbox", "sandboxes", "show", id)
}
