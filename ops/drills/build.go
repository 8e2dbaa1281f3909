package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"bivouac.dev/bivouac/deploy/local"
)

// built is what all tests use: the test binary, and the programs that they start.
type built struct {
	dir, binary string
	// programs is the folder of bivouac and sandbox-agent. raced is the same with a bivouac that
	// has the race detector, "" if no test wants it.
	programs, raced string
	// folder is the package's, in which its tests run; path is its import path.
	folder, path string
}

// build compiles the package's tests, and the programs unless they are handed over
// (local.EnvPrograms).
func build(ctx context.Context, o options, progress io.Writer) (*built, error) {
	dir, err := os.MkdirTemp("", "bivouac-drills-")
	if err != nil {
		return nil, err
	}
	b := &built{dir: dir, binary: filepath.Join(dir, "drills.test"), programs: o.programs}
	err = b.compile(ctx, o, progress)
	if err == nil {
		err = b.buildPrograms(ctx, o, progress)
	}
	if err != nil {
		b.remove()
		return nil, err
	}
	return b, nil
}

// compile compiles the tests.
func (b *built) compile(ctx context.Context, o options, progress io.Writer) error {
	// Tasks of Nomad run as other users.
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return err
	}
	args := []string{"test", "-c", "-o", b.binary}
	if o.race {
		args = append(args, "-race")
	}
	fmt.Fprintf(progress, "compiling the tests of %s\n", o.pkg)
	if err := goCommand(ctx, append(args, o.pkg)...); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}\n{{.ImportPath}}", o.pkg).Output()
	if err != nil {
		return fmt.Errorf("finding %s: %w", o.pkg, err)
	}
	b.folder, b.path, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return nil
}

func (b *built) buildPrograms(ctx context.Context, o options, progress io.Writer) error {
	var err error
	if b.programs == "" {
		b.programs = filepath.Join(b.dir, "programs")
		fmt.Fprintln(progress, "compiling bivouac and sandbox-agent")
		for _, name := range []string{"bivouac", "sandbox-agent"} {
			err = errors.Join(err, local.BuildGo(ctx, "./cmd/"+name, filepath.Join(b.programs, name)))
		}
	}
	if o.raced == nil || err != nil {
		return err
	}
	b.raced = filepath.Join(b.dir, "raced")
	fmt.Fprintln(progress, "compiling bivouac with the race detector")
	if err := local.BuildGo(ctx, "./cmd/sandbox-agent", filepath.Join(b.raced, "sandbox-agent")); err != nil {
		return err
	}
	// With the flags of the environment it shares what `make tests` compiles.
	return goCommand(ctx, "build", "-race", "-o", filepath.Join(b.raced, "bivouac"), "bivouac.dev/bivouac/cmd/bivouac")
}

func goCommand(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	if slices.Contains(args, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // the detector needs it
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// remove deletes what was built.
func (b *built) remove() { _ = os.RemoveAll(b.dir) }

// list asks the test binary for its tests, so that no list can lack one.
func (b *built) list(ctx context.Context, only string) ([]string, error) {
	cmd := exec.CommandContext(ctx, b.binary, "-test.list", "^("+only+")$")
	cmd.Dir = b.folder
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("listing the tests: %w\n%s", err, out)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no test matches %q", only)
	}
	return names, nil
}
