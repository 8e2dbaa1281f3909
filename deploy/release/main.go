// Command release makes what operators install: for each architecture an
// archive, a Debian and an RPM package and two OCI image layouts, with checksums
// and a list of modules and licences (SPDX). `make release` calls it.
//
// The same commit and the same Go give the same bytes: every time in the files
// is SOURCE_DATE_EPOCH, by default the commit's.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root := flag.String("root", "../..", "the root of Bivouac's tree")
	out := flag.String("out", "../../dist", "the folder to write to; it is emptied first")
	arches := flag.String("arch", "amd64,arm64", "the architectures, as Go names them")
	maintainer := flag.String("maintainer", "Bivouac <bivouac@localhost>",
		"who answers for the packages, in their metadata")
	stale := flag.String("stale-results", "",
		"release although ops/bench/RESULTS.md is of another commit, for this reason")
	sandbox := flag.String("sandbox-image", "", "only write the image of sandboxes, around the sandbox-agent in this folder")
	flag.Parse()

	src, err := readSource(ctx, *root)
	if err != nil {
		return err
	}
	if *sandbox != "" {
		return sandboxImageOf(src, *sandbox, *out)
	}
	if err := checkResults(ctx, src.root, *stale, os.Stdout); err != nil {
		return err
	}
	if err := os.RemoveAll(*out); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "bivouac-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)

	// The completions come from a program that runs here, whatever it is built for.
	host, err := build(ctx, src, runtime.GOARCH, tmp)
	if err != nil {
		return err
	}
	for _, arch := range strings.Split(*arches, ",") {
		programs, err := build(ctx, src, arch, tmp)
		if err != nil {
			return err
		}
		r := release{
			source: src, arch: arch, programs: programs, host: host, page: filepath.Join(src.root, "bin", "page"),
			out: *out, maintainer: *maintainer,
		}
		if err := r.make(ctx); err != nil {
			return fmt.Errorf("linux/%s: %w", arch, err)
		}
	}
	return writeChecksums(*out, os.Stdout)
}

// sandboxImageOf writes the image of sandboxes for this architecture. It has no licences: those are
// of a release.
func sandboxImageOf(src source, programs, out string) error {
	tmp, err := os.MkdirTemp("", "bivouac-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r := release{source: src, arch: runtime.GOARCH, programs: programs, out: out}
	return r.sandboxImage(nil, tmp)
}

// checkResults fails if the measurements in ops/bench/RESULTS.md are of another commit or protocol
// version, unless there is a reason to release nevertheless, which it prints.
func checkResults(ctx context.Context, root, reason string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "run", "./ops/bench/results", "-root", root)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK=off")
	said, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case reason == "":
		return fmt.Errorf("%s\nto release nevertheless, say why: make release STALE_RESULTS=\"the reason\"",
			bytes.TrimSpace(said))
	}
	fmt.Fprintf(out, "releasing with measurements of another commit, because: %s\n%s\n", reason, bytes.TrimSpace(said))
	return nil
}

// build builds the programs for one architecture, once, and returns their folder.
func build(ctx context.Context, src source, arch, tmp string) (string, error) {
	dir := filepath.Join(tmp, "bin-"+arch)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	for _, name := range programNames() {
		// What Go records of the commit depends on the kind of checkout: a worktree has nothing.
		fmt.Printf("building %s for linux/%s\n", name, arch)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -X main.version="+src.version+"@"+src.revision, "-o", filepath.Join(dir, name), "./cmd/"+name)
		cmd.Dir = src.root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=-mod=readonly", "GOWORK=off")
		if b, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s for linux/%s: %w\n%s", name, arch, err, b)
		}
	}
	return dir, nil
}

// programNames are the programs of a release.
func programNames() []string { return []string{"bivouac", "sandbox-agent"} }
