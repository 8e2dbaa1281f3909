package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster/backup"
)

// TestServer_MakesBackups: of three nodes with a directory each, the leader makes a backup and
// every node knows it. The next leader does not repeat it.
func TestServer_MakesBackups(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t),
		more: "backup {\n  dir = \"backups\"\n  retain = 2\n}\n"})
	s.up(t, 0, 1, 2)
	report := func(n caller) (r backup.Report) {
		env := map[string]string{"BIVOUAC_API_KEY": n.key, "BIVOUAC_ADDR": n.base}
		if err := json.Unmarshal([]byte(mustRun(t, env, "operator", "snapshot", "list", "--json")), &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	var first backup.Report
	eventually(t, "every node knows of a backup", func() error {
		for _, n := range s.all() {
			if first = report(n); first.Newest.File == "" || first.Newest.Failure != "" {
				return fmt.Errorf("%+v", first)
			}
			if a, err := n.try(http.MethodGet, "/metrics", nil); err != nil ||
				strings.Contains(string(a.body), "bivouac_backup_age_seconds NaN") {
				return errors.New("its age is not among the metrics")
			}
		}
		return nil
	})
	leader := s.leader(t)
	if first.Newest.Node != s.nodes[leader].name {
		t.Logf("the leader changed meanwhile: %s made it", first.Newest.Node)
	}
	made := filepath.Join(s.dir, first.Newest.Node, "backups", first.Newest.File)
	if out := mustRun(t, nil, "operator", "snapshot", "inspect", made); !strings.Contains(out, "(backup)") ||
		!strings.Contains(out, first.Newest.Node) {
		t.Errorf("%s", out)
	}
	maker := s.nodes[leader].caller
	env := map[string]string{"BIVOUAC_API_KEY": maker.key, "BIVOUAC_ADDR": maker.base}
	if out := mustRun(t, env, "operator", "snapshot", "list"); !strings.Contains(out, first.Newest.File) {
		t.Errorf("%s", out)
	}

	s.nodes[leader].process.kill()
	next := s.leader(t)
	s.nodes[next].do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "de"})
	files, err := filepath.Glob(filepath.Join(s.dir, "n?", "backups", "*"))
	if err != nil || len(files) != 1 {
		t.Errorf("after a change of leaders there are %q", files)
	}
	if again := report(s.nodes[next].caller); again.Newest != first.Newest {
		t.Errorf("%+v, then %+v", first.Newest, again.Newest)
	}
}

// TestServer_SaysThatBackupsFail: a file where the leader's folder was keeps it from making backups.
// Both commands say so before the next backup is due, and when it fails.
func TestServer_SaysThatBackupsFail(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t),
		more: "backup {\n  dir = \"backups\"\n  interval = \"10s\"\n}\n"})
	s.up(t, 0, 1, 2)
	flags := []string{"--address", s.nodes[0].base, "--api-key-file", s.keyFile}
	dirs := map[string]string{}
	for _, n := range s.nodes {
		dirs[n.name] = filepath.Join(s.dir, n.name, "backups")
	}
	// Another node may lead meanwhile. NODE and DIR are those of the one that leads at the time.
	says := func(want string, command ...string) {
		t.Helper()
		eventually(t, fmt.Sprint(command, " says ", want), func() error {
			leader := s.nodes[s.leader(t)].name
			now := strings.NewReplacer("NODE", leader, "DIR", dirs[leader]).Replace(want)
			if _, out, _ := runCommand(t, nil, append(command, flags...)...); !strings.Contains(out, now) {
				return errors.New(out)
			}
			return nil
		})
	}
	eventually(t, "the first backup", func() error {
		if files, _ := filepath.Glob(filepath.Join(s.dir, "*", "backups", "*.snap")); len(files) == 0 {
			return errors.New("none")
		}
		return nil
	})
	for _, dir := range dirs {
		if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	says("NODE: no backup can be written: write DIR: not a directory", "status")
	says("fail  node NODE disk: backup: write DIR: not a directory", "operator", "doctor")
	says("the last backup failed, on NODE at ", "status")
	says("warn  cluster.state: the last backup failed, on NODE at ", "operator", "doctor")
}
