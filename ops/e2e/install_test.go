//go:build linux

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestInstall_FollowsThePage runs every command of deploy/README.md, "From three machines to a
// cluster", in order, and compares what it prints with the page. Each machine is a network namespace
// with a file system of its own over this machine's, so the paths and users are the page's. Nomad,
// Vault, HAProxy, Prometheus and Docker are real. What is not:
//   - The addresses: a network that is free here, in place of 10.0.0.0/24.
//   - client-1 is in this machine's network, because its Docker is there, and Nomad runs outside
//     its file system.
//   - The archive is made here, of the files that deploy/release/contents.go names.
//   - systemctl starts what the shipped unit's ExecStartPre and ExecStart say, as its User, and waits
//     for READY=1 where Type=notify: without a sandbox and without restarts. ssh and scp are this test.
func TestInstall_FollowsThePage(t *testing.T) {
	chaos.Need(t, testcluster.Need)
	for _, program := range []string{"docker", "haproxy", "prometheus", "jq", "openssl", "curl", "iptables"} {
		testcluster.Need(t, program, onPath(program))
	}
	page, err := os.ReadFile("../../deploy/README.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := pageSteps(string(page))
	if len(steps) < 15 {
		t.Fatalf("the page has %d blocks of commands", len(steps))
	}
	w := newSite(t)
	for _, s := range steps {
		for _, name := range s.hosts {
			w.follow(t, name, s)
		}
		if t.Failed() {
			w.logs(t)
			t.FailNow()
		}
	}
	w.calledNothingElse(t)
}

func onPath(program string) bool {
	_, err := exec.LookPath(program)
	_, sbin := os.Stat("/usr/sbin/" + program)
	return err == nil || sbin == nil
}

// pageStep is a block of commands and what it prints.
type pageStep struct {
	hosts            []string
	script, expected string
	line             int
}

// pageSteps finds the blocks "```sh MACHINE…", each with the block "```text" that follows at once.
func pageSteps(markdown string) []pageStep {
	var steps []pageStep
	var into *string
	after := false // a block of commands has just ended
	for i, line := range strings.Split(markdown, "\n") {
		rest, commands := strings.CutPrefix(line, "```sh ")
		switch {
		case into != nil && line == "```":
			after, into = into == &steps[len(steps)-1].script, nil
		case into != nil:
			*into += line + "\n"
		case commands:
			steps = append(steps, pageStep{hosts: strings.Fields(rest), line: i + 1})
			into = &steps[len(steps)-1].script
		case line == "```text" && after:
			into, after = &steps[len(steps)-1].expected, false
		default:
			after = false
		}
	}
	return steps
}

// printed is the pattern of what a block prints: "…" is anything within a line, or, alone, any lines.
func printed(expected string) *regexp.Regexp {
	var pattern strings.Builder
	for line := range strings.Lines(expected) {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?s:.*)`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " \n")), "…", `[^\n]*`) + `\s*\n`)
	}
	return regexp.MustCompile(`^` + pattern.String() + `\s*$`)
}

// site is the five machines of the page and one outside.
type site struct {
	dir string
	// mu guards hosts and Nomad: the machines' systemctl, ssh and scp use them too.
	mu    sync.Mutex
	hosts map[string]*host
	// inside and outside begin the addresses that stand for 10.0.0. and for those of everybody.
	inside, outside string
	nomad           *exec.Cmd
	nomadTool       string
	// deviceName is this machine's in the network, space names the machines' namespaces.
	deviceName string
	space      func(string) string
}

// follow runs a block on a machine and compares.
func (w *site) follow(t *testing.T, name string, s pageStep) {
	t.Helper()
	h := w.hosts[name]
	if h == nil {
		t.Fatalf("deploy/README.md:%d: there is no machine %q", s.line, name)
	}
	begun := time.Now()
	// Variables stay for the next block, as in the operator's shell; umask and folder do not.
	script := "set -aeuo pipefail\ncd ~\n[ ! -f " +
		"/run/walk.env ] || . /run/walk.env\n" + w.here(s.script) + "\ncd ~; set +e; export -p > /run/walk.env\n"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := h.command(ctx, "bash", "-c", script).CombinedOutput()
	t.Logf("deploy/README.md:%d on %s, %.1f s:\n%s", s.line, name, time.Since(begun).Seconds(), out)
	if err != nil {
		t.Errorf("deploy/README.md:%d on %s: %v", s.line, name, err)
		return
	}
	text := string(out)
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if !printed(w.here(s.expected)).MatchString(text) {
		t.Errorf("deploy/README.md:%d on %s printed\n%s\nwhere the page has\n%s", s.line, name, out, s.expected)
	}
}

// here puts this test's network in place of the page's.
func (w *site) here(text string) string { return strings.ReplaceAll(text, "10.0.0.", w.inside) }

func (w *site) logs(t *testing.T) {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(w.dir, "*", "run", "*.log"))
	more, _ := filepath.Glob(filepath.Join(w.dir, "*.log"))
	for _, file := range append(logs, more...) {
		out, _ := exec.Command("tail", "-n", "25", file).CombinedOutput()
		t.Logf("%s:\n%s", file, out)
	}
}

// newSite makes the machines, and what is there before.
func newSite(t *testing.T) *site {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bvi-") // sockets lie in it: a short name
	if err != nil {
		t.Fatal(err)
	}
	w := &site{dir: dir, hosts: map[string]*host{}}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.network(t)
	archive := w.archive(t)
	for _, h := range []struct{ name, space, number string }{
		{
			"node-1",
			"n1",
			"11",
		}, {
			"node-2",
			"n2",
			"12",
		}, {"node-3", "n3", "13"}, {"ops-1", "ops", "10"}, {"outside", "out", "99"}, {"client-1", "", "20"},
	} {
		made := w.newHost(t, h.name, h.space, archive)
		w.mu.Lock()
		w.hosts[h.name] = made
		w.mu.Unlock()
	}
	image := w.sandboxImage(t)
	if err := w.hosts["client-1"].put(image, "/root/"+filepath.Base(image)); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"node-1", "node-2", "node-3"} {
		w.hosts[node].watchCalls(t)
	}
	w.startVault(t)
	w.startNomad(t)
	return w
}

// network joins the machines by a bridge in a namespace of its own, out of reach of this machine's
// firewall.
func (w *site) network(t *testing.T) {
	t.Helper()
	id := fmt.Sprintf("%x", os.Getpid()&0xfffff)
	w.inside, w.outside = freeNetworks(t)
	must := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v %s", strings.Join(args, " "), err, out)
		}
	}
	space := func(name string) string { return "bivouac-install-" + id + "-" + name }
	add := func(name string) {
		must("netns", "add", space(name))
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", space(name)).Run() })
		must("-n", space(name), "link", "set", "lo", "up")
	}
	add("bridge")
	must("-n", space("bridge"), "link", "add", "br0", "type", "bridge")
	must("-n", space("bridge"), "link", "set", "br0", "up")
	for _, h := range []struct{ name, inside, outside string }{
		{"n1", "11", ""}, {"n2", "12", ""}, {"n3", "13", ""}, {"ops", "10", "10"}, {"out", "", "99"}, {"host", "20", ""},
	} {
		device, port := "bvi"+id+h.name, "p"+h.name
		in := []string{}
		if h.name != "host" {
			add(h.name)
			in = []string{"-n", space(h.name)}
		}
		must("link", "add", device, "type", "veth", "peer", "name", port, "netns", space("bridge"))
		must("-n", space("bridge"), "link", "set", port, "master", "br0", "up")
		if h.name == "host" {
			t.Cleanup(func() { _ = exec.Command("ip", "link", "del", device).Run() })
			w.deviceName = device
		} else {
			must("link", "set", device, "netns", space(h.name))
		}
		for _, a := range []struct{ net, number string }{{w.inside, h.inside}, {w.outside, h.outside}} {
			if a.number != "" {
				must(append(in, "addr", "add", a.net+a.number+"/24", "dev", device)...)
			}
		}
		must(append(in, "link", "set", device, "up")...)
	}
	w.space = space
}

// freeNetworks returns the beginnings of a private and of a public network that are free here.
func freeNetworks(t *testing.T) (inside, outside string) {
	t.Helper()
	used, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		n := (os.Getpid() + i) % 200
		inside, outside = fmt.Sprintf("10.87.%d.", n), fmt.Sprintf("198.19.%d.", n)
		taken := false
		for _, a := range used {
			taken = taken || strings.HasPrefix(a.String(), inside) || strings.HasPrefix(a.String(), outside)
		}
		if !taken {
			return inside, outside
		}
	}
	t.Fatal("no network is free")
	return "", ""
}

// sandboxImage makes the release's image of sandboxes, around the program that archive has built.
func (w *site) sandboxImage(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", "-C", "../../deploy/release", ".", "-root", "../..",
		"-sandbox-image", w.dir, "-out", w.dir)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(w.dir, "bivouac-sandbox-agent-*.oci.tar"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	return found[0]
}

// archive makes the archive of a release: the programs, and what deploy/release/contents.go lists.
func (w *site) archive(t *testing.T) string {
	t.Helper()
	contents, err := os.ReadFile("../../deploy/release/contents.go")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(w.dir, "bivouac-0.0.0-linux-amd64.tar.gz")
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	zip, err := gzip.NewWriterLevel(out, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	pack := tar.NewWriter(zip)
	add := func(source, to string, mode int64) {
		raw, err := os.ReadFile(source)
		if err == nil {
			// The page's addresses in the shipped files are this test's, as in its commands.
			if !strings.HasPrefix(to, "usr/bin/") {
				raw = bytes.ReplaceAll(raw, []byte("10.0.0."), []byte(w.inside))
			}
			err = pack.WriteHeader(&tar.Header{
				Typeflag: tar.TypeReg,
				Name:     "bivouac-0.0.0-linux-amd64/" + to,
				Mode:     mode,
				Size:     int64(len(raw)),
			})
		}
		if err == nil {
			_, err = pack.Write(raw)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"bivouac", "sandbox-agent"} {
		binary := filepath.Join(w.dir, program)
		if err := local.BuildGo(t.Context(), "./cmd/"+program, binary); err != nil {
			t.Fatal(err)
		}
		add(binary, "usr/bin/"+program, 0o755)
	}
	rules := regexp.MustCompile(`\{"([^"]+)", "(usr/[^"]+)"\}`).FindAllStringSubmatch(string(contents), -1)
	if len(rules) < 15 {
		t.Fatalf("deploy/release/contents.go has %d rules", len(rules))
	}
	for _, r := range rules {
		files, err := filepath.Glob(filepath.Join("../..", r[1]))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v %v", r[1], files, err)
		}
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			if !info.IsDir() {
				add(f, r[2]+filepath.Base(f), int64(info.Mode().Perm()))
			}
		}
	}
	if err := pack.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}
