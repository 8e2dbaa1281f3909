package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// takeoverData has the data directories of earlier programs, made by TestTakeover_Make. Files
// of one commit are in testdata/data/<commit>.
const takeoverData = "testdata/data"

// eachTakeover runs test for each kept file of that name.
func eachTakeover(t *testing.T, file string, test func(t *testing.T, archive string)) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(takeoverData, "*", file))
	if err != nil || len(found) == 0 {
		t.Fatalf("no %s below %s: %v", file, takeoverData, err)
	}
	for _, archive := range found {
		t.Run(filepath.Base(filepath.Dir(archive)), func(t *testing.T) {
			t.Parallel()
			test(t, archive)
		})
	}
}

func TestTakeover_ServersStartOnDirectoriesOfEarlierPrograms(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"boltdb", "wal"} {
		t.Run(store, func(t *testing.T) {
			eachTakeover(t, "server-"+store+".tar.gz", func(t *testing.T, archive string) {
				s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
				dir := t.TempDir()
				facts := unpack(t, archive, dir)
				s.keyFile = filepath.Join(s.dir, "operator-key")
				if err := os.WriteFile(s.keyFile, []byte(facts.Key+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				for _, n := range s.nodes {
					if err := os.Rename(filepath.Join(dir, n.name), filepath.Join(n.dir, "data")); err != nil {
						t.Fatal(err)
					}
					n.key = facts.Key
				}
				s.up(t, 0, 1, 2)
				s.raise(t, facts.Version)
				facts.check(t, s.all())
				noLimits(t, s.all())
				s.nodes[0].do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{"language": "after"})
				// Raft's configuration has the new addresses, so after a restart the nodes find
				// each other without help.
				for _, n := range s.nodes {
					n.process.kill()
				}
				s.up(t, 2, 1, 0)
				for _, n := range s.all() {
					if a := n.do(t, http.StatusOK, http.MethodGet, "/api/settings",
						nil); !strings.Contains(string(a.body), `"language":"after"`) {
						t.Errorf("%s after the restart: %s", n.base, a)
					}
				}
			})
		})
	}
}

// raise sets the newest protocol version, as an operator does after an upgrade. Until then the
// version is that of the earlier program.
func (s *serverCluster) raise(t *testing.T, before int) {
	t.Helper()
	flags := []string{"--address", s.nodes[1].base, "--api-key-file", s.keyFile}
	if before < fsm.ProtocolVersion {
		want := fmt.Sprintf("the cluster uses protocol version %d", before)
		eventually(t, want+", and all know more", func() error {
			text := mustRun(t, nil, append([]string{"operator", "protocol"}, flags...)...)
			if !strings.Contains(text, want) || !strings.Contains(text, "every node knows version") {
				return errors.New(text)
			}
			return nil
		})
	}
	newest := strconv.Itoa(fsm.ProtocolVersion)
	if code, _, stderr := runCommand(t, nil,
		append([]string{"operator", "protocol", "set", newest}, flags...)...); code != exitUsage ||
		!strings.Contains(stderr, "for good?") {
		t.Errorf("without an answer: exit %d, %s", code, stderr)
	}
	if text := mustRun(t, nil,
		append([]string{"operator", "protocol", "set", newest, "--yes"},
			flags...)...); text != "the cluster uses protocol version "+newest {
		t.Errorf("%q", text)
	}
	if code, _, stderr := runCommand(t, nil,
		append([]string{"operator", "protocol", "set", strconv.Itoa(fsm.ProtocolVersion + 1), "--yes"},
			flags...)...); code != exitFailed || !strings.Contains(stderr, "was not set") {
		t.Errorf("a version that nobody knows: exit %d, %s", code, stderr)
	}
}

func TestTakeover_DevStartsOnFoldersOfEarlierPrograms(t *testing.T) {
	t.Parallel()
	eachTakeover(t, "dev.tar.gz", func(t *testing.T, archive string) {
		dir := t.TempDir()
		facts := unpack(t, archive, dir)
		if err := dropExpired(tlsDir(devLayout{dir}.tls())); err != nil {
			t.Fatal(err)
		}
		r := startDev(t, dir)
		if r.key.Value != facts.Key {
			t.Error("it has another key")
		}
		facts.check(t, r.all)
		noLimits(t, r.all)
		r.all[0].do(t, http.StatusOK, http.MethodPost, "/api/v1/sandboxes/"+facts.Paused+"/resume", nil)
		if got := inSandbox(t, r.all[0].awaitSandbox(t, facts.Paused, "RUNNING"), "cat kept.txt"); got != "kept\n" {
			t.Errorf("the paused sandbox's file holds %q", got)
		}
		r.all[0].awaitSandbox(t, facts.Sandbox, "RUNNING")
		r.onlyConversation(t, facts.Sandbox, facts.Conversation)
		// A conversation needs the model's key, a secret.
		r.all[2].awaitTask(t, r.all[1].startConversation(t, "once more"))
	})
}

// noLimits checks that the defaults of new clusters don't reach one that has run before.
func noLimits(t *testing.T, nodes []caller) {
	t.Helper()
	var in wire.Config
	nodes[0].do(t, http.StatusOK, http.MethodGet, configPath, nil).json(t, &in)
	all, user := in.Limits.Installation, in.Limits.User
	if all.Running != 0 || all.Total != 0 || user.Running != 0 || user.Total != 0 || user.StartsPerMinute != 0 {
		t.Errorf("limits came into force: %+v", in)
	}
}

// check checks on every node that the earlier program's data is there, and that the protocol
// version is the newest.
func (f takeoverFacts) check(t *testing.T, nodes []caller) {
	t.Helper()
	for _, n := range nodes {
		before, after := map[string]any{}, map[string]any{}
		answer{body: []byte(f.Settings)}.json(t, &before)
		n.do(t, http.StatusOK, http.MethodGet, "/api/settings", nil).json(t, &after)
		for name, was := range before { // the current program may have more members
			if diff := cmp.Diff(was, after[name]); diff != "" {
				t.Errorf("%s: settings: %s (-before +after)\n%s", n.base, name, diff)
			}
		}
		keys, specs := listed(t, n)
		if diff := cmp.Diff(append(f.Keys, f.Specs...), append(keys, specs...)); diff != "" {
			t.Errorf("%s: keys and specs (-before +after)\n%s", n.base, diff)
		}
		if list, err := n.conversations(); err != nil || len(list) != 1 || list[0].ID != f.Conversation ||
			list[0].SandboxID != f.Sandbox {
			t.Errorf("%s: conversations %+v, %v", n.base, list, err)
		}
		sandboxes, err := n.sandboxes()
		states := map[string]string{}
		for _, b := range sandboxes {
			states[b.ID] = b.Status
		}
		if err != nil || len(sandboxes) != 2 || states[f.Paused] != "PAUSED" || states[f.Sandbox] == "" {
			t.Errorf("%s: sandboxes %v, %v", n.base, states, err)
		}
		eventually(t, "the protocol version rises", func() error {
			var status cluster.Status
			a, err := n.try(http.MethodGet, "/api/v1/operator/status", nil)
			if err == nil {
				err = decode(a, &status)
			}
			if err == nil && (status.ProtocolVersion != fsm.ProtocolVersion || status.ProtocolVersion < f.Version) {
				err = fmt.Errorf("it is %d, was %d, and %d is known", status.ProtocolVersion, f.Version, fsm.ProtocolVersion)
			}
			return err
		})
	}
}

// unpack extracts an archive into dir and returns its facts. Zeros become holes, because most
// of a raft-wal file is zeros.
func unpack(t *testing.T, archive, dir string) (facts takeoverFacts) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case !filepath.IsLocal(h.Name):
			t.Fatalf("%s holds %q", archive, h.Name)
		case h.Name == "facts.json":
			if err := json.NewDecoder(r).Decode(&facts); err != nil {
				t.Fatal(err)
			}
		case h.Typeflag == tar.TypeDir:
			err = os.MkdirAll(filepath.Join(dir, h.Name), 0o700)
		default:
			err = unpackOne(filepath.Join(dir, h.Name), os.FileMode(h.Mode).Perm(), r, h.Size)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if facts.Key == "" {
		t.Fatalf("%s holds no facts.json", archive)
	}
	return facts
}

// dropExpired removes expired certificates, so that the archive's age does not fail the test:
// `bivouac dev` makes new ones.
func dropExpired(d tlsDir) error {
	raw, err := os.ReadFile(d.ca())
	if err != nil {
		return err
	}
	block, _ := pem.Decode(raw)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	if now := time.Now(); now.After(c.NotBefore) && now.Before(c.NotAfter) {
		return nil
	}
	return os.RemoveAll(string(d))
}

func unpackOne(path string, mode os.FileMode, from io.Reader, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); at < size; {
		n, err := io.ReadFull(from, block[:min(int64(len(block)), size-at)])
		if err != nil {
			return err
		}
		if !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := f.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return f.Truncate(size)
}

func jsonText(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}
