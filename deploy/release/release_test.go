package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/blakesmith/ar"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	spdxjson "github.com/spdx/tools-golang/json"
)

const testVersion = "1.2.3~rc1"

// testRelease makes a release of programs for this architecture.
func testRelease(t *testing.T, programs, out string) release {
	t.Helper()
	root, bin := built(t)
	src := source{
		root:     root,
		version:  testVersion,
		revision: strings.Repeat("a", 40),
		time:     time.Unix(1_700_000_000, 0).UTC(),
	}
	r := release{
		source:     src,
		arch:       runtime.GOARCH,
		programs:   programs,
		host:       bin,
		page:       standInPage(t),
		out:        out,
		maintainer: "Tester <t@example.org>",
	}
	if err := r.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// built returns the tree's root and the folder of the programs that `make build` left.
func built(t *testing.T) (root, bin string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin = filepath.Join(root, "bin")
	for _, name := range programNames() {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			t.Skipf("%v (make build)", err)
		}
	}
	return root, bin
}

// standIns builds a small program for each of a release: compressing the real ones takes most of
// a release's time.
func standIns(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.org/x\n",
		"main.go": "package main\n\nfunc main() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range programNames() {
		cmd := exec.Command("go", "build", "-ldflags", "-s -w -X main.name="+name, "-o", filepath.Join("bin", name), ".")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
	}
	return filepath.Join(dir, "bin")
}

// standInPage writes a small web page: the real one takes seconds to compress.
func standInPage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"manifest.json": `{"packages":[{"name":"@example/page","version":"1.2.3","licence":"MIT"}],"files":{}}`,
		"LICENSES.txt":  "the licence of the page\n", "files/index.html": "<!DOCTYPE html>",
	} {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestRelease_HoldsWhatOperatorsNeed has one release made and looks at everything in it, then
// another. The completions and the licences are those of the real programs.
func TestRelease_HoldsWhatOperatorsNeed(t *testing.T) {
	programs, out := standIns(t), t.TempDir()
	r := testRelease(t, programs, out)
	name := "bivouac-" + testVersion + "-linux-" + r.arch
	archive := trimFolder(t, readTar(t, gunzip(t, readFile(t, filepath.Join(out, name+".tar.gz")))), name+"/")
	t.Run("Archive", func(t *testing.T) {
		wantFiles(t, r, archive, "usr/share/zsh/site-functions/_bivouac")
	})
	t.Run("Deb", func(t *testing.T) {
		members := readDeb(t, filepath.Join(out, "bivouac_"+testVersion+"_"+r.arch+".deb"))
		wantFiles(t, r, readTar(t, gunzip(t, members["data.tar.gz"])), "usr/share/zsh/vendor-completions/_bivouac")
		wantControl(t, readTar(t, gunzip(t, members["control.tar.gz"])))
	})
	t.Run("Lintian", func(t *testing.T) { wantLintian(t, filepath.Join(out, "bivouac_"+testVersion+"_"+r.arch+".deb")) })
	t.Run("RPM", func(t *testing.T) { wantRPM(t, r, out, archive) })
	t.Run("Image", func(t *testing.T) { wantImage(t, r, filepath.Join(out, name+".oci.tar")) })
	t.Run("SandboxImage", func(t *testing.T) {
		wantSandboxImage(t, r, filepath.Join(out, "bivouac-sandbox-agent-"+testVersion+"-linux-"+r.arch+".oci.tar"))
	})
	t.Run("TwoRunsGiveTheSameBytes", func(t *testing.T) {
		again := t.TempDir()
		testRelease(t, programs, again)
		names := readDir(t, out)
		if len(names) != 6 || !slices.Equal(names, readDir(t, again)) {
			t.Fatalf("%q and %q", names, readDir(t, again))
		}
		for _, name := range names {
			a, b := readFile(t, filepath.Join(out, name)), readFile(t, filepath.Join(again, name))
			if !bytes.Equal(a, b) {
				t.Errorf("%s: different bytes (%d and %d)", name, len(a), len(b))
			}
		}
	})
	t.Run("Checksums", func(t *testing.T) {
		if err := writeChecksums(out, io.Discard); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		cmd.Dir = out
		if b, err := cmd.CombinedOutput(); err != nil || bytes.Count(b, []byte(": OK\n")) != 6 {
			t.Errorf("%v:\n%s", err, b)
		}
	})
}

// wantFiles checks what every format has, and that each file is the one of the tree.
func wantFiles(t *testing.T, r release, got map[string]entry, zsh string) {
	t.Helper()
	for path, mode := range map[string]int64{
		"usr/bin/bivouac":                                        0o755,
		"usr/bin/sandbox-agent":                                  0o755,
		"usr/lib/systemd/system/bivouac.service":                 0o644,
		"usr/lib/systemd/system/bivouac-sandbox-network.service": 0o644,
		"usr/lib/bivouac/sandbox-network.sh":                     0o755,
		"usr/share/bivouac/config/node.hcl":                      0o644,
		"usr/share/bivouac/haproxy/haproxy.cfg":                  0o644,
		"usr/share/bivouac/nomad/bivouac.policy.hcl":             0o644,
		"usr/share/bivouac/nomad/client.hcl":                     0o644,
		"usr/share/bivouac/nomad/server.hcl":                     0o644,
		"usr/share/bivouac/prometheus/prometheus.yml":            0o644,
		"usr/share/bivouac/vault/bivouac.hcl":                    0o644,
		"usr/share/bivouac/vault/nomad-workloads.hcl":            0o644,
		"usr/share/bivouac/docker/Dockerfile":                    0o644,
		"usr/share/bash-completion/completions/bivouac":          0o644,
		"usr/share/fish/vendor_completions.d/bivouac.fish":       0o644,
		zsh:                                       0o644,
		"usr/share/doc/bivouac/README.md":         0o644,
		"usr/share/doc/bivouac/CHANGELOG.md":      0o644,
		"usr/share/doc/bivouac/API" + ".md":       0o644,
		"usr/share/doc/bivouac/configuration.txt": 0o644,
		"usr/share/doc/bivouac/copyright":         0o644,
		"usr/share/bivouac/page/manifest.json":    0o644,
		"usr/share/bivouac/page/files/index.html": 0o644,
		"usr/share/doc/bivouac/bivouac.spdx.json": 0o644,
	} {
		e, there := got[path]
		switch {
		case !there:
			t.Errorf("%s is missing", path)
		case e.header.Mode&0o777 != mode || len(e.body) == 0:
			t.Errorf("%s: mode %o with %d bytes, want %o and some", path, e.header.Mode, len(e.body), mode)
		}
	}
	for _, source := range operatorFiles(t, r.source.root) {
		want := readFile(t, filepath.Join(r.source.root, source))
		if !slices.ContainsFunc(keys(got), func(p string) bool {
			return filepath.Base(p) == filepath.Base(source) && bytes.Equal(got[p].body, want)
		}) {
			t.Errorf("%s is in no package: add it to deploy/release/contents.go, or to notForOperators here", source)
		}
	}
	for path, e := range got {
		if e.header.Typeflag == tar.TypeReg && strings.HasPrefix(path, "etc/") {
			t.Errorf("%s: /etc is the operator's, an upgrade would overwrite or ask", path)
		}
		if e.header.ModTime.Unix() != r.source.time.Unix() {
			t.Errorf("%s: time %s", path, e.header.ModTime)
		}
	}
}

// notForOperators are files of deploy and ops that only code, tests, `make stack` and, in the tree with
// the agents' lock file, `make sandbox-image` read.
var notForOperators = regexp.MustCompile(`^deploy/(local|tools|release|image)/|^deploy/config/` +
	`stack|\.go$|^ops/runbooks/testdata/`)

// operatorFiles are the files of the tree that some package must have: all of deploy, the runbooks,
// dashboards and alerts, without what notForOperators names.
func operatorFiles(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	for _, folder := range []string{"deploy", "ops/runbooks", "ops/dashboards", "ops/alerts"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if rel = filepath.ToSlash(rel); !notForOperators.MatchString(rel) {
				files = append(files, rel)
			}
			return err
		})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return files
}

func wantControl(t *testing.T, got map[string]entry) {
	t.Helper()
	control := string(got["control"].body)
	for _, want := range []string{
		"\nVersion: " + testVersion + "\n",
		"\nArchitecture: " + runtime.GOARCH + "\n",
		"\nPre-Depends: passwd\n",
	} {
		if !strings.Contains(control, want) {
			t.Errorf("control does not say %q:\n%s", want, control)
		}
	}
	for _, script := range []string{"preinst", "postinst", "prerm", "postrm"} {
		if e := got[script]; e.header == nil || e.header.Mode&0o111 == 0 {
			t.Errorf("%s is missing or can't be run", script)
		}
	}
	if _, there := got["conffiles"]; there {
		t.Error("there are conffiles: an upgrade would ask")
	}
}

// wantRPM reads the package with rpm where it is installed. It has the archive's files.
func wantRPM(t *testing.T, r release, out string, archive map[string]entry) {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[r.arch]
	file := filepath.Join(out, "bivouac-"+testVersion+"-1."+arch+".rpm")
	readFile(t, file)
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("rpm is not installed")
	}
	b, err := exec.Command("rpm", "--query", "--package", "--nodigest", "--nosignature",
		"--queryformat", `[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILESIZES}\n]`, file).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if !slices.ContainsFunc(lines,
		func(l string) bool { return strings.HasPrefix(l, "/etc/bivouac drwxr-x--- root:bivouac ") }) {
		t.Error("/etc/bivouac is missing")
	}
	for path, e := range archive {
		want := fmt.Sprintf("/%s %s root:root %d", path, e.header.FileInfo().Mode(), len(e.body))
		if !slices.Contains(lines, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if len(lines) != len(archive)+1 {
		t.Errorf("%d files, want those of the archive and /etc/bivouac:\n%s", len(lines), b)
	}
}

// readImage reads the layout as an engine does: by index.json or, as old ones do, by manifest.json.
// It returns the configuration and what is in the one layer.
func readImage(t *testing.T, file, tag string) (*v1.ConfigFile, map[string]entry) {
	t.Helper()
	dir := t.TempDir()
	contents := readTar(t, readFile(t, file))
	for path, e := range contents {
		sum := fmt.Sprintf("%x", sha256.Sum256(e.body))
		if folder, name := filepath.Split(path); folder == "blobs/sha256/" && name != sum {
			t.Errorf("%s: its checksum is %s", path, sum)
		}
		to := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, e.body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	img, err := index.Image(list.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	var docker tarball.Manifest
	if err := json.Unmarshal(contents["manifest.json"].body, &docker); err != nil {
		t.Fatal(err)
	}
	for _, blob := range append(docker[0].Layers, docker[0].Config) {
		if _, there := contents[blob]; !there {
			t.Errorf("manifest.json: there is no %s", blob)
		}
	}
	if got := docker[0].RepoTags; !slices.Equal(got, []string{tag}) {
		t.Errorf("manifest.json: %q", got)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	body, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return config, readTar(t, all)
}

func wantImage(t *testing.T, r release, file string) {
	config, got := readImage(t, file, "bivouac:1.2.3-rc1")
	if config.Architecture != r.arch || config.Config.User != "65532:65532" ||
		config.Config.Labels["org.opencontainers.image.version"] != testVersion {
		t.Errorf("%+v", config)
	}
	for _, name := range programNames() {
		if !bytes.Equal(got["usr/bin/"+name].body, readFile(t, filepath.Join(r.programs, name))) {
			t.Errorf("usr/bin/%s is not the program", name)
		}
	}
	if e := got["var/lib/bivouac/"]; e.header == nil || e.header.Uid != imageUser || e.header.Mode != 0o700 {
		t.Errorf("var/lib/bivouac: %+v", e.header)
	}
	if block, _ := pem.Decode(got["etc/ssl/certs/ca-certificates.crt"].body); block == nil {
		t.Error("the image has no certificates of authorities")
	}
	if _, there := got["usr/share/doc/bivouac/copyright"]; !there {
		t.Error("the image has no licences")
	}
}

func wantSandboxImage(t *testing.T, r release, file string) {
	config, got := readImage(t, file, "bivouac/sandbox-agent:1.2.3-rc1")
	if config.Architecture != r.arch || !slices.Equal(config.Config.Entrypoint, []string{"/sandbox-agent"}) ||
		config.Config.User != "" {
		t.Errorf("%+v", config)
	}
	e := got["sandbox-agent"]
	if !bytes.Equal(e.body, readFile(t, filepath.Join(r.programs, "sandbox-agent"))) || e.header.Mode != 0o755 {
		t.Errorf("sandbox-agent is not the program: %+v", e.header)
	}
	if _, there := got["usr/share/doc/bivouac/copyright"]; !there {
		t.Error("the image has no licences")
	}
}

// TestLicences_EveryModuleHasOne compares the list with what Go says about the program.
func TestLicences_EveryModuleHasOne(t *testing.T) {
	root, bin := built(t)
	dir := t.TempDir()
	r := release{
		source: source{root: root, version: testVersion}, programs: bin, page: standInPage(t),
		maintainer: "Tester <t@example.org>",
	}
	if err := r.licences(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "spdx"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := spdxjson.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	licences := map[string]string{}
	for _, p := range doc.Packages {
		licences[p.PackageName+" "+p.PackageVersion] = p.PackageLicenseConcluded
	}
	b, err := exec.Command("go", "version", "-m", filepath.Join(r.programs, "bivouac")).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`).FindAllStringSubmatch(string(b), -1)
	if len(deps) < 30 {
		t.Fatalf("go version -m names %d modules:\n%s", len(deps), b)
	}
	for _, m := range deps {
		if licence := licences[m[1]+" "+m[2]]; licence == "" || strings.Contains(licence, "NOASSERTION") {
			t.Errorf("%s %s: licence %q", m[1], m[2], licence)
		}
	}
	if got := licences["github.com/hashicorp/raft v1.7.3"]; got != "MPL-2.0" {
		t.Errorf("hashicorp/raft: %q, want MPL-2.0", got)
	}
	if got := licences["@example/page 1.2.3"]; got != "MIT" {
		t.Errorf("the package of the web page: %q, want MIT", got)
	}
	if texts := string(readFile(t,
		filepath.Join(dir, "copyright"))); !strings.Contains(texts, "\ngithub.com/hashicorp/raft v1.7.3 (MPL-2.0)\n") {
		t.Error("the licence texts do not name hashicorp/raft")
	}
}

func TestLicence_AnUnknownTextIsAnError(t *testing.T) {
	dir := t.TempDir()
	m := module{path: "example.org/x", version: "v1.0.0"}
	if err := m.readLicences(dir); err == nil || !strings.Contains(err.Error(), "no licence file") {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"),
		[]byte("You may look at this on Sundays, and on other days ask us first."), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.readLicences(dir); err == nil || !strings.Contains(err.Error(), "is no licence that is known") {
		t.Errorf("with an unknown text: %v", err)
	}
}

type entry struct {
	header *tar.Header
	body   []byte
}

func readTar(t *testing.T, b []byte) map[string]entry {
	t.Helper()
	got := map[string]entry{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimPrefix(h.Name, "./")] = entry{header: h, body: body}
	}
}

func trimFolder(t *testing.T, all map[string]entry, folder string) map[string]entry {
	t.Helper()
	got := map[string]entry{}
	for name, e := range all {
		path, is := strings.CutPrefix(name, folder)
		if !is {
			t.Errorf("%s is not below %s", name, folder)
		}
		got[path] = e
	}
	return got
}

func readDeb(t *testing.T, file string) map[string][]byte {
	t.Helper()
	got := map[string][]byte{}
	for r := ar.NewReader(bytes.NewReader(readFile(t, file))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimSuffix(h.Name, "/")] = body
	}
}

func gunzip(t *testing.T, b []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readDir(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func keys(m map[string]entry) []string {
	var list []string
	for k := range m {
		list = append(list, k)
	}
	return list
}
