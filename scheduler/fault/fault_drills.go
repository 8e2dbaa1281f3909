//go:build drills

package fault

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// EnvDir names the environment variable with the folder through which a drill names the point.
// The file "die-at" in it holds a label. The first process to reach that point renames the
// file, so exactly one process dies, once.
const EnvDir = "BIVOUAC_DRILL_DIR"

// At kills this process with SIGKILL if the drill armed the label "<moment> <what>". Before that
// it writes the file "died": the environment variable BIVOUAC_DRILL_NODE and the label.
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
		return // another process was faster
	}
	_ = os.WriteFile(filepath.Join(dir, "died"), []byte(os.Getenv("BIVOUAC_DRILL_NODE")+" "+moment+" "+what), 0o600)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal needs a moment
}
