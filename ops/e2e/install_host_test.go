//go:build linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// host is a machine of the page: a network namespace, and a file system over this machine's.
type host struct {
	site *site
	name string
	dir  string
	// holder lives as long as the machine does; its namespaces and its root are the machine's.
	holder *exec.Cmd

	mu    sync.Mutex
	units map[string]*exec.Cmd
}

// machineScript makes the file system: writes go to memory, and /run is a folder of the test.
const machineScript = `set -e
hostname "$1"
mount -t tmpfs tmpfs "$2/disk"
mkdir "$2/disk/up" "$2/disk/work" "$2/disk/root"
root=$2/disk/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$2/disk/up,workdir=$2/disk/work" "$root"
for d in proc dev sys; do mount --rbind "/$d" "$root/$d"; done
mount --bind "$2/run" "$root/run"
if [ -S /run/docker.sock ]; then touch "$root/run/docker.sock"; mount --bind /run/docker.sock "$root/run/docker.sock"; fi
mount -t tmpfs tmpfs "$root/tmp"
cp "$2/hosts" "$root/etc/hosts"
for p in systemctl ssh scp; do
  printf '#!/bin/sh\nfor a in "$(basename "$0")" "$@"; do printf "%%s\\n" "$a"; done | curl -sS --fail-with-body --unix-socket /run/test.sock --data-binary @- http://test/\n' > "$root/usr/local/bin/$p"
  chmod 0755 "$root/usr/local/bin/$p"
done
rm -rf "$root/root/.bashrc" "$root/etc/haproxy/haproxy.cfg"
mkdir -p "$root/etc/nomad.d" "$root/etc/haproxy" "$root/etc/prometheus"
install -d -o haproxy -g haproxy -m 2775 "$root/run/haproxy" # as its package's tmpfiles.d
touch "$2/run/made"
exec chroot "$root" sleep infinity
`

func (w *site) newHost(t *testing.T, name, space, archive string) *host {
	t.Helper()
	h := &host{site: w, name: name, dir: filepath.Join(w.dir, name), units: map[string]*exec.Cmd{}}
	for _, d := range []string{"disk", "run"} {
		if err := os.MkdirAll(filepath.Join(h.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	api := w.inside + "10"
	if name == "outside" {
		api = w.outside + "10"
	}
	names := "127.0.0.1 localhost\n" + api + " bivouac.example.org\n"
	for _, m := range [][2]string{
		{"node-1", "11"},
		{"node-2", "12"},
		{"node-3", "13"},
		{"ops-1", "10"},
		{"client-1", "20"},
	} {
		names += w.inside + m[1] + " " + m[0] + "\n"
	}
	if err := os.WriteFile(filepath.Join(h.dir, "hosts"), []byte(names), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"unshare",
		"--mount",
		"--uts",
		"--propagation",
		"private",
		"sh",
		"-c",
		machineScript,
		"sh",
		name,
		h.dir,
	}
	if space != "" {
		args = append([]string{"ip", "netns", "exec", w.space(space)}, args...)
	}
	h.holder = exec.Command(args[0], args[1:]...)
	said := filepath.Join(h.dir, "machine.log")
	log, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	h.holder.Stdout, h.holder.Stderr = log, log
	if err := h.holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.stop(t) })
	testcluster.Eventually(t, "the machine "+name, func() error {
		if _, err := os.Stat(filepath.Join(h.dir, "run", "made")); err != nil {
			text, _ := os.ReadFile(said)
			return fmt.Errorf("%w: %s", err, text)
		}
		// The script's last command has to be there: its root is the machine's.
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.holder.Process.Pid))
		if err != nil || strings.TrimSpace(string(comm)) != "sleep" {
			return errors.New("its root is not there yet")
		}
		return nil
	})
	h.serve(t)
	if err := h.put(archive, "/root/"+filepath.Base(archive)); err != nil {
		t.Fatal(err)
	}
	env := ""
	if name == "ops-1" {
		for _, program := range []string{"vault", "nomad"} {
			tool, err := local.Tool(t.Context(), program, os.Stderr)
			if err == nil {
				err = h.put(tool, "/usr/local/bin/"+program)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		env = "export VAULT_ADDR=http://" + w.inside + "20:8200 NOMAD_ADDR=http://" + w.inside + "20:4646\n" +
			"export VAULT_TOKEN=" + rootToken + " NOMAD_TOKEN=" + managementToken + "\n"
	}
	env += "export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8\n"
	if err := os.WriteFile(filepath.Join(h.dir, "run", "walk.env"), []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// host returns a machine, nil if there is none of the name.
func (w *site) host(name string) *host {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hosts[name]
}

// root is the machine's file system as this process sees it.
func (h *host) root(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", h.holder.Process.Pid, path)
}

// put copies a file of this machine's onto it.
func (h *host) put(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(h.root(to), raw, info.Mode().Perm())
}

// command makes a command on the machine.
func (h *host) command(ctx context.Context, args ...string) *exec.Cmd {
	in := []string{"--target", strconv.Itoa(h.holder.Process.Pid), "--mount", "--uts", "--net", "--root", "--wd", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(in, args...)...)
	cmd.Env = []string{"HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	cmd.WaitDelay = time.Second
	return cmd
}

// stop ends the machine's units and the machine.
func (h *host) stop(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, unit := range h.units {
		end := syscall.SIGTERM
		if name == "bivouac" { // it would drain first
			end = syscall.SIGKILL
		}
		_ = unit.Process.Signal(end)
		_ = unit.Wait()
		delete(h.units, name)
	}
	_ = h.holder.Process.Kill()
	_ = h.holder.Wait()
}

// serve answers the machine's systemctl, ssh and scp.
func (h *host) serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(h.dir, "run", "test.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			raw, err := io.ReadAll(r.Body)
			args := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
			out := ""
			if err == nil {
				switch args[0] {
				case "systemctl":
					err = h.systemctl(r.Context(), args[1:])
				case "ssh":
					out, err = h.ssh(r.Context(), args[1], args[2:])
				case "scp":
					err = h.scp(args[1:])
				}
			}
			if err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				out += err.Error() + "\n"
			}
			_, _ = io.WriteString(w, out)
		})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

func (h *host) ssh(ctx context.Context, to string, args []string) (string, error) {
	other := h.site.host(to)
	if other == nil {
		return "", fmt.Errorf("ssh: there is no %s", to)
	}
	out, err := other.command(ctx, args...).CombinedOutput()
	return string(out), err
}

// scp copies files to a machine's folder, or one from a machine.
func (h *host) scp(args []string) error {
	if args[0] == "-q" {
		args = args[1:]
	}
	place := func(arg string) (*host, string) {
		name, path, remote := strings.Cut(arg, ":")
		if !remote {
			return h, arg
		}
		return h.site.host(name), path
	}
	target, folder := place(args[len(args)-1])
	for _, arg := range args[:len(args)-1] {
		source, path := place(arg)
		if source == nil || target == nil {
			return fmt.Errorf("scp: no such machine in %v", args)
		}
		to := folder
		if strings.HasSuffix(folder, "/") {
			to += filepath.Base(path)
		}
		if err := target.put(source.root(path), to); err != nil {
			return err
		}
	}
	return nil
}

// systemctl does what the page asks of it, with the units as they are installed.
func (h *host) systemctl(ctx context.Context, args []string) error {
	block, verb := true, ""
	var names []string
	for _, a := range args {
		switch {
		case a == "--no-block":
			block = false
		case strings.HasPrefix(a, "--"):
		case verb == "":
			verb = a
		default:
			names = append(names, strings.TrimSuffix(a, ".service"))
		}
	}
	if verb == "daemon-reload" {
		return nil
	}
	for _, name := range names {
		if name == "nomad" { // it is the operator's, and has no unit of ours
			return h.site.restartNomad()
		}
		if err := h.start(ctx, name, block); err != nil {
			return fmt.Errorf("%s %s: %w", verb, name, err)
		}
	}
	return nil
}

// unit is what the stand-in for systemd reads of a unit.
type unit struct {
	user, state string
	kind        string
	environment []string
	pre, start  []string
}

var quotedWord = regexp.MustCompile(`"([^"]*)"|(\S+)`)

func (h *host) readUnit(name string) (u unit, err error) {
	raw, err := os.ReadFile(h.root("/usr/lib/systemd/system/" + name + ".service"))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(raw)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key {
		case "User":
			u.user = value
		case "Type":
			u.kind = value
		case "StateDirectory":
			u.state = value
		case "ExecStartPre":
			u.pre = append(u.pre, value)
		case "ExecStart":
			u.start = append(u.start, value)
		case "Environment":
			for _, m := range quotedWord.FindAllStringSubmatch(value, -1) {
				u.environment = append(u.environment, m[1]+m[2])
			}
		case "EnvironmentFile":
			file, _ := os.ReadFile(h.root(strings.TrimPrefix(value, "-")))
			for set := range strings.Lines(string(file)) {
				if key, value, ok := strings.Cut(strings.TrimSpace(set), "="); ok && !strings.HasPrefix(key, "#") {
					u.environment = append(u.environment, key+"="+strings.Trim(value, `"'`))
				}
			}
		}
	}
	return u, nil
}

// start starts a unit, or starts it again.
func (h *host) start(ctx context.Context, name string, block bool) error {
	u, err := h.readUnit(name)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.units[name]; old != nil {
		_ = old.Process.Signal(syscall.SIGTERM)
		_ = old.Wait()
	}
	if u.state != "" {
		if out, err := h.command(ctx, "install", "-d", "-o", u.user, "-m", "0700",
			"/var/lib/"+u.state).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	run := func(ctx context.Context, line string) *exec.Cmd {
		args := []string{"sh", "-c", "exec " + line}
		if u.user != "" {
			args = append([]string{"setpriv", "--reuid", u.user, "--regid", u.user, "--init-groups", "--no-new-privs"}, args...)
		}
		cmd := h.command(ctx, args...)
		cmd.Env = append(cmd.Env, u.environment...)
		return cmd
	}
	oneshot := u.pre
	if u.kind == "oneshot" {
		oneshot = append(oneshot, u.start...)
	}
	for _, line := range oneshot {
		if out, err := run(ctx, line).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", line, err, out)
		}
	}
	if u.kind == "oneshot" {
		return nil
	}
	log, err := os.Create(filepath.Join(h.dir, "run", name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	socket, err := net.ListenUnixgram("unixgram",
		&net.UnixAddr{
			Net:  "unixgram",
			Name: filepath.Join(h.dir, "run", name+"-notify-"+strconv.FormatInt(time.Now().UnixNano(), 36)),
		})
	if err != nil {
		return err
	}
	notify := filepath.Base(socket.LocalAddr().String())
	if err := os.Chmod(filepath.Join(h.dir, "run", notify), 0o666); err != nil {
		return err
	}
	cmd := run(context.WithoutCancel(ctx), u.start[0])
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET=/run/"+notify)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	h.units[name] = cmd
	if u.kind != "notify" || !block {
		return nil
	}
	defer socket.Close()
	if err := socket.SetReadDeadline(time.Now().Add(90 * time.Second)); err != nil {
		return err
	}
	for buffer := make([]byte, 4096); ; {
		n, err := socket.Read(buffer)
		if err != nil {
			return fmt.Errorf("it did not say that it is ready: %w", err)
		}
		if bytes.Contains(buffer[:n], []byte("READY=1")) {
			return nil
		}
	}
}

// The tokens that the operator has of Vault and Nomad.
const (
	rootToken       = "walk-root-token"
	managementToken = "5a0d6d3c-1d1c-4b5a-9f43-5d2f7a3f8c11"
)
