package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletion_InTheShells loads each script in its shell and completes the name of a runbook
// there. The scripts ask the program. A shell that is not installed only skips its own part.
func TestCompletion_InTheShells(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "bivouac")); err != nil {
		t.Fatal(err)
	}
	for shell, ask := range map[string]string{
		// The function is bash-completion's, which a test machine may lack.
		"bash": `_get_comp_words_by_ref() { cur=dis prev=runbook words=("${COMP_WORDS[@]}") cword=2; }
			source ./script
			complete -p bivouac
			COMP_WORDS=(bivouac runbook dis) COMP_CWORD=2 COMP_LINE="bivouac runbook dis" COMP_POINT=19 COMP_TYPE=9
			__start_bivouac
			echo "${COMPREPLY[@]}"`,
		"zsh": `autoload -Uz compinit && compinit -D; source ./script; echo $_comps[bivouac]; ` +
			`bivouac __complete runbook dis`,
		"fish": `source ./script; complete --do-complete "bivouac runbook dis"`,
	} {
		t.Run(shell, func(t *testing.T) {
			code, script, stderr := runCommand(t, nil, "completion", shell)
			if code != exitOK || stderr != "" {
				t.Fatalf("exit %d: %s", code, stderr)
			}
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("%s is not installed", shell)
			}
			if err := os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(path, "-c", ask)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), mainEnv+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "disk") {
				t.Errorf("%v: %s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
