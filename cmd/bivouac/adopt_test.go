package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A copied folder of `bivouac dev` does not start and says what to do. After that it starts.
func TestDev_CopiedFolderIsAdoptedFirst(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	r := startDev(t, dir)
	r.all[0].do(t, 200, "POST", "/api/settings", map[string]any{"language": "en"})
	settings := string(r.all[0].do(t, 200, "GET", "/api/settings", nil).body)
	r.end(t)
	copied := filepath.Join(t.TempDir(), "dev")
	if out, err := exec.Command("cp", "-a", dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if c, err := openDev(devOptions{dataDir: copied, nodes: 3, logLevel: "debug"}); err == nil ||
		!strings.Contains(err.Error(), "adopt-disk") {
		t.Fatalf("the copy: %v, %v", c, err)
	}
	code, _, stderr := runCommand(t, nil, "operator", "adopt-disk", "--dev", copied)
	if code != exitUsage || !strings.Contains(stderr, "nobody answered") {
		t.Errorf("without an answer: exit %d: %s", code, stderr)
	}
	for _, args := range [][]string{{}, {"--dev", copied, "--config", "x"}, {"--dev", t.TempDir()}} {
		if code, _, stderr := runCommand(t, nil,
			append([]string{"operator", "adopt-disk", "--yes"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit %d: %s", args, code, stderr)
		}
	}
	if out := mustRun(t, nil, "operator", "adopt-disk", "--yes", "--dev", copied); !strings.Contains(out, "is adopted") {
		t.Errorf("adopt-disk printed %q", out)
	}
	r = startDev(t, copied)
	if got := string(r.all[2].do(t, 200, "GET", "/api/settings", nil).body); got != settings {
		t.Errorf("settings %s, want %s", got, settings)
	}
}

// The same for a node of `bivouac server`.
func TestServer_CopiedDirectoryIsAdoptedFirst(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	s.up(t, 0, 1, 2)
	n := s.nodes[2]
	n.terminate(t)
	data := filepath.Join(n.dir, "data")
	if out, err := exec.Command("sh", "-c",
		"cp -a "+data+" "+data+".copy && rm -r "+data+" && mv "+data+".copy "+data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.start()
	if code := n.process.wait(t); code != exitFailed || !strings.Contains(n.process.stderr.String(), "is a copy") {
		t.Errorf("the copy: exit %d: %s", code, n.process.stderr.String())
	}
	if out := mustRun(t, nil, "operator", "adopt-disk", "--yes", "--json", "--config",
		n.config); !strings.Contains(out, `"adopted"`) {
		t.Errorf("adopt-disk printed %q", out)
	}
	n.start()
	n.ready(t)
}
