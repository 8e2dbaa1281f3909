package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node's user can't read what root writes into its data directory. The commands that change a
// stopped node's disk reject other users.
func TestOperator_DiskCommandsRunAsTheOwnerOfTheDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a directory of another user")
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "n1"), 0o700); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile("testdata/config/good_full.hcl")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "node.hcl")
	text := strings.Replace(string(good), `"data"`, `"`+dir+`"`, 1)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 54321, -1); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"recover --yes --config " + config, "recover --describe --config " + config,
		"adopt-disk --yes --config " + config, "adopt-disk --yes --dev " + dir} {
		code, _, stderr := runCommand(t, nil, append([]string{"operator"}, strings.Fields(args)...)...)
		if code != exitFailed || !strings.Contains(stderr, "belongs to the user #54321") {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "lock")); err == nil {
		t.Error("a lock file was made")
	}
}
