package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestServer_RecordsAreShownAndCleared: members object to a disk. An operator sees why on any node,
// and clears it with an operator's key; then the disk starts.
func TestServer_RecordsAreShownAndCleared(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	s.up(t, 0, 1, 2)
	n, asked := s.nodes[2], []string{"operator", "records", "--config", s.nodes[0].config}
	data := filepath.Join(n.dir, "data")
	copyTo := func(from, to string) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", "rm -rf "+to+" && cp -a "+from+" "+to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	n.terminate(t)
	copyTo(data, data+".older")
	n.start()
	n.ready(t)
	eventually(t, "n1 knows the later start", func() error {
		for line := range strings.Lines(mustRun(t, nil, asked...)) {
			if f := strings.Fields(line); strings.HasPrefix(line, "n3.") && f[1] == "2" && f[3] == s.peers[2] {
				return nil
			}
		}
		return fmt.Errorf("it prints\n%s", mustRun(t, nil, asked...))
	})
	n.terminate(t)
	copyTo(data+".older", data)
	mustRun(t, nil, "operator", "adopt-disk", "--yes", "--config", n.config)
	n.start()
	if code := n.process.wait(t); code != exitFailed || !strings.Contains(n.process.stderr.String(),
		"objects to the start of this node") {
		t.Fatalf("the older disk: exit %d: %s", code, n.process.stderr.String())
	}
	key := []string{"--api-key-file", s.keyFile}
	user := filepath.Join(s.dir, "user-key")
	value := mustRun(t, nil, "keys", "create", "--user", "alice", "--name", "laptop", "--address", s.nodes[0].base,
		key[0], key[1])
	if err := os.WriteFile(user, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(want string, args ...string) {
		t.Helper()
		code, _, stderr := runCommand(t, nil, append(slices.Clone(asked), args...)...)
		if code == exitOK || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit %d, want %q: %s", args, code, want, stderr)
		}
	}
	refused("nobody answered", "--clear", "n3", key[0], key[1])
	refused("needs an operator's key", "--clear", "n3", "--yes")
	refused("needs an operator's key", "--clear", "n3", "--yes", key[0], user)
	refused(`no record of node "n9"`, "--clear", "n9", "--yes", key[0], key[1])
	eventually(t, "both members clear it", func() error { // a call to n2 has a second
		out := mustRun(t, nil, append(slices.Clone(asked), "--clear", "n3", "--yes", key[0], key[1])...)
		if !strings.Contains(out, "cleared here, and on: n2") {
			return errors.New(out)
		}
		return nil
	})
	n.start()
	n.ready(t)
}
