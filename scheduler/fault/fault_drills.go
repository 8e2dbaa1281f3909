//go:build drills

package fault

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// EnvDir names the folder through which a drill says where to die. Its file
// "die-at" holds a label; the first process to reach that point takes the file
// away, so that exactly one dies, and once.
const EnvDir = "BIVOUAC_DRILL_DIR"

// At kills this process with SIGKILL when the drill waits for it at the label
// "<moment> <what>". The file is then called "died", with the process's
// environment variable BIVOUAC_DRILL_NODE and the label in it.
func At(moment, what string) {
	dir := os.Getenv(EnvDir)
	if dir == "" {
		return
	}
	armed := filepath.Join(dir, "die-at")
	label, err := os.ReadFile(armed)
	if err != nil || strings.TrimSpace(string(label)) != moment+" "+what {
		return
	}
	if os.Rename(armed, filepath.Join(dir, "taken")) != nil {
		return // another was faster
	}
	_ = os.WriteFile(filepath.Join(dir, "died"), []byte(os.Getenv("BIVOUAC_DRILL_NODE")+" "+moment+" "+what), 0o600)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // nothing happens between the signal and the end
}
