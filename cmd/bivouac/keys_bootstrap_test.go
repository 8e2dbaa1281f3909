package main

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// full is a full disk.
type full struct{}

// Write implements io.Writer.
func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestKeysBootstrap_Reset: an operator who lost the key gets another, if the leader's disk has the
// file that the refusal names. The file is good for one key.
func TestKeysBootstrap_Reset(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	n := s.nodes[0]
	n.expectOne(t)
	n.start()
	n.ready(t)
	lost, file := filepath.Join(s.dir, "lost.key"), filepath.Join(s.dir, "operator.key")
	mustRun(t, nil, "keys", "bootstrap", "--config", n.config, "--out", lost)
	reset := func(out string) (int, string) {
		code, _, stderr := runCommand(t, nil, "keys", "bootstrap", "--config", n.config, "--out", out, "--reset")
		return code, stderr
	}
	// Until the leader has raised the protocol version, a reset is a bootstrap like any other.
	var code int
	var stderr string
	eventually(t, "a reset asks for the file", func() error {
		if code, stderr = reset(file); strings.Contains(stderr, "may be used") {
			return errors.New(stderr)
		}
		return nil
	})
	_, after, _ := strings.Cut(stderr, "write 1 to ")
	allow, _, found := strings.Cut(after, " on ")
	if _, err := os.Stat(file); code != exitFailed || !found || !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a reset that no file allows: exit %d, %q, the key's file: %v", code, stderr, err)
	}
	if err := os.WriteFile(allow, []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stderr := reset(file); code != exitFailed || !strings.Contains(stderr, "write 1 to ") {
		t.Errorf("a file with another number: exit %d, %q", code, stderr)
	}
	if err := os.WriteFile(allow, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time as after a lost response
		if code, stderr := reset(file); code != exitOK {
			t.Fatalf("exit %d, %q", code, stderr)
		}
	}
	for _, name := range []string{lost, file} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		operator := caller{base: n.base, key: strings.TrimSpace(string(text))}
		operator.do(t, http.StatusOK, http.MethodGet, "/api/v1/operator/keys", nil)
	}
	if code, stderr := reset(filepath.Join(s.dir, "third.key")); code != exitFailed ||
		!strings.Contains(stderr, "write 2 to ") {
		t.Errorf("the file is good for a second key: exit %d, %q", code, stderr)
	}
}

// TestKeysBootstrap_LosesNoKey: after a first key that could not be shown, another one can be
// issued.
func TestKeysBootstrap_LosesNoKey(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	n := s.nodes[0]
	n.expectOne(t)
	n.start()
	n.ready(t)
	var errs buffer
	p := &program{stdin: strings.NewReader(""), stdout: full{}, stderr: &errs, getenv: func(string) string { return "" }}
	if code := p.run(t.Context(), []string{"keys", "bootstrap", "--config", n.config}); code == exitOK {
		t.Fatal("a key that could not be printed counts as issued")
	}
	file := filepath.Join(s.dir, "operator.key")
	code, stdout, stderr := runCommand(t, nil, "keys", "bootstrap", "--config", n.config, "--out", file)
	if code != exitOK || stdout != "" {
		t.Fatalf("bootstrap after a key that was lost: exit %d, %q, %q", code, stdout, stderr)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the key's file: %v %v", info, err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	operator := caller{base: n.base, key: strings.TrimSpace(string(text))}
	operator.do(t, http.StatusOK, http.MethodGet, "/api/v1/operator/keys", nil)
	// The same file gives the same key; another file is rejected.
	mustRun(t, nil, "keys", "bootstrap", "--config", n.config, "--out", file)
	again, err := os.ReadFile(file)
	if err != nil || string(again) != string(text) {
		t.Fatalf("the file holds another key: %v", err)
	}
	other := filepath.Join(s.dir, "other.key")
	code, _, stderr = runCommand(t, nil, "keys", "bootstrap", "--config", n.config, "--out", other)
	if _, err := os.Stat(other); code != exitFailed || !strings.Contains(stderr,
		"has an operator's key that may be used") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a second bootstrap: exit %d, %q, the file: %v", code, stderr, err)
	}
	// A device has no end.
	code, _, stderr = runCommand(t, nil, "keys", "bootstrap", "--config", n.config, "--out", "/dev/zero")
	if code == exitOK || !strings.Contains(stderr, "is there and holds no key") {
		t.Errorf("a device: exit %d, %q", code, stderr)
	}
	code, _, stderr = runCommand(t, nil, "keys", "bootstrap", "--config", n.config, "--out",
		filepath.Join(s.dir, "none", "x"))
	if code == exitOK || strings.Contains(stderr, "has its first key") {
		t.Errorf("a file that can't be written: exit %d, %q", code, stderr)
	}
	code, stdout, stderr = runCommand(t, nil, "keys", "bootstrap", "--config", n.config, "--out", n.config)
	if code == exitOK || !strings.Contains(stderr, "holds no key") {
		t.Errorf("a file that is something else: exit %d, %q, %q", code, stdout, stderr)
	}
}
