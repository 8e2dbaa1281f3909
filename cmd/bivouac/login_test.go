package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"bivouac.dev/bivouac/httpapi/wire"
)

// user makes a user with a key, and returns the user's environment and client.
func (r *running) user(t testing.TB, name string) (map[string]string, caller) {
	t.Helper()
	var key wire.CreatedAPIKey
	r.all[0].do(t, http.StatusCreated, http.MethodPost, "/api/v1/operator/keys",
		map[string]any{"user": name, "name": "test"}).json(t, &key)
	var addresses []string
	for _, n := range r.all {
		addresses = append(addresses, n.base)
	}
	env := map[string]string{"BIVOUAC_ADDR": strings.Join(addresses, ","), "BIVOUAC_API_KEY": key.Key}
	return env, caller{base: r.all[0].base, key: key.Key}
}

// environ is an environment as processes have it.
func environ(env map[string]string) (list []string) {
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

// TestLogin_KeepsAKeyForTheCommands: the key is tried, kept in one file for its user alone, and sent
// to the login's nodes only.
func TestLogin_KeepsAKeyForTheCommands(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	theirs, _ := r.user(t, "ada")
	key, home := theirs["BIVOUAC_API_KEY"], t.TempDir()
	env := map[string]string{"HOME": home}
	file := filepath.Join(home, ".config", "bivouac", "login.json")
	run := func(want int, text, stdin string, args ...string) {
		t.Helper()
		code, stdout, stderr := runCommandWith(t, env, stdin, args...)
		if code != want || !strings.Contains(stdout+stderr, text) || strings.Contains(stdout+stderr, key) {
			t.Errorf("%v: exit %d, want %d with %q\n%s%s", args, code, want, text, stdout, stderr)
		}
	}
	addresses := "http://127.0.0.1:1," + theirs["BIVOUAC_ADDR"]
	run(exitUsage, "an API key is needed", "", "conversations", "list")
	run(exitFailed, "does not know this API key", "bvk_wrong\n", "login", "--address", addresses)
	if _, err := os.Stat(file); err == nil {
		t.Error("a key that does not work was kept")
	}
	run(exitOK, "as ada", key+"\n", "login", "--address", addresses)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", file, info, err)
	}
	run(exitOK, "ID  STATUS", "", "conversations", "list")
	run(exitUsage, "an API key is needed", "", "conversations", "list", "--address", "http://127.0.0.1:2")
	env["BIVOUAC_ADDR"] = r.all[2].base
	run(exitOK, "[]", "", "sandboxes", "list", "--json")
	delete(env, "BIVOUAC_ADDR")
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	run(exitUsage, "chmod 600", "", "conversations", "list")
	run(exitOK, "is removed", "", "logout")
	run(exitOK, "there is no login", "", "logout")
	run(exitUsage, "an API key is needed", "", "conversations", "list")
}

// TestLogin_AtATerminalShowsNoKey types the key at a terminal.
func TestLogin_AtATerminalShowsNoKey(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	theirs, _ := r.user(t, "ada")
	home := t.TempDir()
	c := startTerminal(t, map[string]string{"HOME": home, "XDG_CONFIG_HOME": "", "BIVOUAC_API_KEY": "",
		"BIVOUAC_ADDR": theirs["BIVOUAC_ADDR"]}, "login")
	c.await(t, "API key: ")
	c.types(t, theirs["BIVOUAC_API_KEY"]+"\r")
	if code := c.wait(t); code != exitOK || !strings.Contains(c.stdout.String(), "as ada") {
		t.Errorf("exit %d: %s", code, c.stdout.String())
	}
	if strings.Contains(c.stdout.String(), theirs["BIVOUAC_API_KEY"]) {
		t.Error("the terminal shows the key")
	}
	if _, err := os.Stat(filepath.Join(home, ".config", "bivouac", "login.json")); err != nil {
		t.Error(err)
	}
}

// terminal is the program at a terminal; stdout is all that the terminal shows.
type terminal struct {
	*child
	tty *os.File
}

// startTerminal starts the program at a terminal of 100 columns.
func startTerminal(t testing.TB, env map[string]string, args ...string) *terminal {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(self, args...), ended: make(chan struct{})}
	c.cmd.Env = append(append(os.Environ(), mainEnv+"=1"), environ(env)...)
	tty, err := pty.StartWithSize(c.cmd, &pty.Winsize{Rows: 40, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 4096)
		for {
			n, err := tty.Read(b)
			_, _ = c.stdout.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = c.cmd.Wait()
		<-read
		close(c.ended)
	}()
	t.Cleanup(func() { c.kill(); tty.Close() })
	return &terminal{c, tty}
}

// await waits until the terminal shows a text.
func (c *terminal) await(t testing.TB, text string) { t.Helper(); awaitText(t, c.child, text) }

func (c *terminal) types(t testing.TB, keys string) {
	t.Helper()
	if _, err := c.tty.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}
