package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestCommands_WrongUsageIsOneLineAndExit2(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.hcl")
	if err := os.WriteFile(bad, []byte(`color = "red"`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		want string
	}{
		{"nonsense", `unknown command "nonsense" for "bivouac"`},
		{"dev --color", "unknown flag: --color"},
		{"dev extra", `unknown command "extra" for "bivouac dev"`},
		{"dev --nodes 2", "--nodes must be an odd number between 1 and 9, got 2"},
		{"dev --nodes 11", "--nodes must be an odd number between 1 and 9, got 11"},
		{"dev --nodes x", `invalid argument "x" for "--nodes" flag`},
		{"dev --http-port 70000", "--http-port must be between 0 and 65515, got 70000"},
		{"dev --http-port -1", "--http-port must be between 0 and 65515, got -1"},
		{"dev --log-level loud", `--log-level: "loud" must be one of "debug", "info", "warn", "error"`},
		{"dev --data-dir=", "--data-dir must not be empty"},
		{"server", "--config is required"},
		{"server --config " + filepath.Join(dir, "none.hcl"), "no such file or directory"},
		{"server --check --config " + dir, "is a directory"},
		{"server --json --config testdata/config/good_full.hcl", "--json needs --check"},
		{"monitor --log-level loud", `--log-level: "loud" must be one of "debug", "info", "warn", "error"`},
		{"operator debug --duration 10ms", "--duration must be between 1s and 1h, got 10ms"},
		{"ui extra", `unknown command "extra" for "bivouac ui"`},
		{"keys", "bivouac keys needs one of its commands"},
		{"keys create --user a", "--name is required"},
		{"keys revoke", "accepts 1 arg(s), received 0"},
		{"keys revoke x", `"x" is not the id of a key`},
		{"runbook dsk", `there is no runbook "dsk"; there are backup, `},
		{"runbook disk hold", "accepts at most 1 arg(s), received 2"},
		{"completion", "accepts 1 arg(s), received 0"},
		{"completion tcsh", `invalid argument "tcsh" for "bivouac completion"`},
		{"keys list", "an API key is needed"},
		{"keys list --address nonsense", `--address: "nonsense" must be "http://host:port"`},
		{"keys bootstrap", "--config is required"},
		{"sandboxes list --all --user ada", "give --all or --user NAME"},
		{"sandboxes show", "accepts 1 arg(s), received 0"},
		{"sandboxes logs", "accepts 1 arg(s), received 0"},
		{"sandboxes logs x --stream stdin", `--stream: "stdin" must be one of "all", "stdout", "stderr"`},
		{"sandboxes logs x --tail 1048577", "--tail must be between 0 and 1048576, got 1048577"},
		{"sandboxes logs x --follow --previous", "--previous is over"},
		{"conversations", "bivouac conversations needs one of its commands"},
		{"conversations list --all --user ada", "give --all or --user NAME"},
		{"conversations show", "accepts 1 arg(s), received 0"},
		{"conversations list", "an API key is needed"},
		{"conversations show x", "an API key is needed"},
		{"conversations delete", "accepts 1 arg(s), received 0"},
		{"conversations attach", "accepts 1 arg(s), received 0"},
		{"conversations attach x --confirm maybe", `--confirm: "maybe" must be one of "ask", "accept", "reject"`},
		{"conversations send x", "accepts 2 arg(s), received 1"},
		{"run", "accepts 1 arg(s), received 0"},
		{"run --branch b task", "--branch needs --repo"},
		{"run task", "an API key is needed"},
		{"run task --address http://a:1,b", `--address: "b" must be`},
		{"login --address http://a:1", "an API key is needed: one line on stdin"},
		{"sandboxes exec x", "requires at least 2 arg(s), only received 1"},
		{"sandboxes exec --timeout 0s x y", "--timeout must be at least 1s, is 0s"},
		{"sandboxes cp a b", "one of both is SANDBOX:/PATH"},
		{"sandboxes open", "accepts between 1 and 2 arg(s), received 0"},
		{"sandboxes pause", "accepts 1 arg(s), received 0"},
		{"sandboxes resume", "accepts 1 arg(s), received 0"},
		{"sandboxes rotate-key", "accepts 1 arg(s), received 0"},
		{"sandboxes delete", "accepts 1 arg(s), received 0"},
		{"sandboxes share a", "accepts 2 arg(s), received 1"},
		{"sandboxes share a b --for 0s", "--for must be positive, is 0s"},
		{"sandboxes shares", "accepts 1 arg(s), received 0"},
		{"sandboxes unshare a", "accepts 2 arg(s), received 1"},
		{"specs pool agent", "accepts 2 arg(s), received 1"},
		{"specs pool agent -- -1", "is not the size of a pool"},
		{"specs pool agent many", "is not the size of a pool"},
		{"users disable", "accepts 1 arg(s), received 0"},
		{"users enable a b", "accepts 1 arg(s), received 2"},
		{"users delete a", "--purge is required"},
		{"keys disable x", `"x" is not the id of a key`},
		{"keys create --user a --name b --expires soon", `--expires: "soon" is neither a duration`},
		{"keys create --user a --name b --expires 2020-01-01T00:00:00Z", "is in the past"},
		{"users set", "accepts 1 arg(s), received 0"},
		{"users set a --idle-timeout soon", "--idle-timeout: \"soon\" is not a duration"},
		{"users set a --running-sandboxes=-1", "--running-sandboxes: must not be negative"},
		{"specs apply", "accepts 1 arg(s), received 0"},
		{"specs apply " + filepath.Join(dir, "none.hcl"), "no such file or directory"},
		{"tls init", "--dir is required"},
		{"tls init --dir " + dir + " --days 0", "--days must be between 1 and 36500"},
		{"tls issue --dir " + dir + " --node Node_1", "--node: "},
		{"operator protocol set", "accepts 1 arg(s), received 0"},
		{"operator protocol set next", `"next" is not a protocol version`},
		{"operator protocol other", "unknown command"},
		{"status", "an API key is needed"},
		{"status extra", `unknown command "extra" for "bivouac status"`},
		{"status --interval 1ms", "--interval must be at least 100ms, is 1ms"},
		{"operator usage --by day", `--by: "day" must be user, model or conversation`},
		{"operator usage --limit -1", "--limit: must not be negative"},
		{"operator usage", "an API key is needed"},
		{"operator doctor", "an API key is needed"},
		{"operator doctor --config " + filepath.Join(dir, "none.hcl"), "no such file or directory"},
		{"operator copies verify", "--config is required"},
		{"operator copies verify --config " + filepath.Join(dir, "none.hcl"), "no such file or directory"},
		{"operator status --api-key-file " + filepath.Join(dir, "none"), "--api-key-file: "},
	} {
		t.Run(test.args, func(t *testing.T) {
			code, stdout, stderr := runCommand(t, nil, strings.Fields(test.args)...)
			if code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			if lines := strings.Split(strings.TrimSpace(stderr), "\n"); len(lines) != 1 || !strings.Contains(stderr, test.want) {
				t.Errorf("stderr is not the one line with %q:\n%s", test.want, stderr)
			}
			if stdout != "" {
				t.Errorf("stdout: %s", stdout)
			}
		})
	}
}

func TestCommands_ServerReportsEveryMistakeOfItsConfig(t *testing.T) {
	bad := writeBadConfig(t, "type")
	code, _, stderr := runCommand(t, nil, "server", "--config", bad)
	if code != exitUsage || strings.Count(stderr, "bivouac: "+bad+":") < 3 {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
}

func TestCommands_HelpHasExamplesEverywhere(t *testing.T) {
	root := (&program{}).rootCommand()
	var walk func(path []string)
	walk = func(path []string) {
		cmd, _, err := root.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		code, stdout, _ := runCommand(t, nil, append(path, "--help")...)
		if code != exitOK || stdout == "" {
			t.Errorf("%v --help: exit %d", path, code)
		}
		if !cmd.HasSubCommands() && !cmd.Hidden && !strings.Contains(stdout, "Examples:") {
			t.Errorf("%v --help has no example", path)
		}
		for _, sub := range cmd.Commands() {
			if sub.Name() != "help" && sub.Name() != sandboxAgentName {
				walk(append(append([]string{}, path...), sub.Name()))
			}
		}
	}
	walk(nil)
}

func TestCommands_Version(t *testing.T) {
	if code, stdout, _ := runCommand(t, nil, "version"); code != exitOK || !strings.HasPrefix(stdout, "bivouac ") {
		t.Errorf("exit %d: %s", code, stdout)
	}
	if code, stdout, _ := runCommand(t, nil, "version", "--json"); code != exitOK ||
		!strings.Contains(stdout, `"go":"go1.`) {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

func TestTLS_InitAndIssue(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	run := func(want int, text string, args ...string) {
		t.Helper()
		code, stdout, stderr := runCommand(t, nil, append([]string{"tls"}, args...)...)
		if code != want || !strings.Contains(stdout+stderr, text) {
			t.Fatalf("%v: exit %d, want %d with %q\n%s%s", args, code, want, text, stdout, stderr)
		}
	}
	run(exitFailed, "reading the CA", "issue", "--dir", dir, "--node", "n1")
	run(exitOK, "ca-key.pem", "init", "--dir", dir)
	run(exitFailed, "is there already", "init", "--dir", dir)
	run(exitOK, "n1-key.pem", "issue", "--dir", dir, "--node", "n1", "--host", "127.0.0.1", "--host", "localhost")
	run(exitOK, "n1-key.pem", "issue", "--dir", dir, "--node", "n1", "--days", "30")
	run(exitFailed, "can't be added", "issue", "--dir", dir, "--node", "n2", "--host", "n1.node.bivouac")
	for name, mode := range map[string]os.FileMode{
		"ca.pem":     0o644,
		"ca-key.pem": 0o600,
		"n1.pem":     0o644,
		"n1-key.pem": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %o", name, info, err, mode)
		}
	}
}

func TestDev_WhatCanNotStartIsOneLine(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	locked := t.TempDir()
	release, err := lockDir(locked)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = release() }()
	info := filepath.Join(locked, "dev.json")
	if err := os.WriteFile(info, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		want string
		args []string
	}{
		"port in use": {
			"port " + port + " is in use; choose others with --http-port",
			[]string{"--data-dir", t.TempDir(), "--nodes", "1", "--http-port", port},
		},
		"a file":           {"the data directory can't be used: ", []string{"--data-dir", file}},
		"not to be made":   {"the data directory can't be used: ", []string{"--data-dir", filepath.Join(file, "below")}},
		"second instance":  {"is in use by another bivouac", []string{"--data-dir", locked}},
		"not a node count": {"--nodes must be", []string{"--data-dir", t.TempDir(), "--nodes", "4"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := runCommand(t, nil, append([]string{"dev"}, test.args...)...)
			if code == exitOK || stdout != "" {
				t.Errorf("exit %d, stdout %q", code, stdout)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, test.want) {
				t.Errorf("stderr is not the one line with %q:\n%s", test.want, stderr)
			}
		})
	}
	if _, err := os.Stat(info); err != nil {
		t.Errorf("the second instance took the first one's dev.json away: %v", err)
	}
}

func TestLayout_KeyOutlivesACrashBeforeItIsIssued(t *testing.T) {
	l := devLayout{t.TempDir()}
	first, err := l.loadKey()
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.loadKey()
	if err != nil || first != second {
		t.Errorf("a second start made another key: %v", err)
	}
	if info, err := os.Stat(l.key()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	if err := os.WriteFile(l.key(), []byte("bvk_canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.loadKey(); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("a broken key file: %v", err)
	}
}

func TestLayout_PeerPortsAreRemembered(t *testing.T) {
	l := devLayout{t.TempDir()}
	names := nodeNames(3)
	addresses := func() []string {
		bound, err := l.listenPeers(names)
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(bound)
		var out []string
		for _, ln := range bound {
			out = append(out, ln.Addr().String())
		}
		return out
	}
	first := addresses()
	if second := addresses(); strings.Join(first, " ") != strings.Join(second, " ") {
		t.Errorf("ports moved from %v to %v", first, second)
	}
	if err := l.checkNodes(5); err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--nodes 3") {
		t.Errorf("five nodes on a directory of three: %v", err)
	}
	if err := l.checkNodes(3); err != nil {
		t.Error(err)
	}
}

func TestProgress_SaysWhatItWaitsFor(t *testing.T) {
	said := make(chan string, 10)
	var got string
	err := withProgress(t.Context(), writerFunc(func(b []byte) { said <- string(b) }), "counting",
		func(context.Context) error {
			got = <-said
			return nil
		})
	if err != nil || !strings.HasPrefix(got, "counting ... ") {
		t.Errorf("said %q, %v", got, err)
	}
}

// writerFunc is an io.Writer that hands everything to a function.
type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }
