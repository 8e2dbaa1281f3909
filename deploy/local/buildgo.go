package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// EnvPrograms is the variable with the folder of our commands, built from this tree. Tests take
// them from there and link nothing. `make tests` and `make e2e` set it to the folder of `make
// build`.
const EnvPrograms = "BIVOUAC_TEST_PROGRAMS"

// BuildGo compiles one of our commands statically to out. pkg is relative to the tree's root:
// "./cmd/sandbox-agent". Where EnvPrograms is set, BuildGo takes the command from there.
func BuildGo(ctx context.Context, pkg, out string) error {
	return buildGo(ctx, os.Getenv(EnvPrograms), pkg, out)
}

// buildGo is BuildGo with the folder of EnvPrograms, "" for none.
func buildGo(ctx context.Context, programs, pkg, out string) error {
	if name, command := strings.CutPrefix(pkg, "./cmd/"); command && programs != "" {
		return placeProgram(ctx, filepath.Join(programs, name), out)
	}
	root, err := Root()
	if err != nil {
		return fmt.Errorf("building %s: %w", pkg, err)
	}
	if out, err = filepath.Abs(out); err != nil {
		return fmt.Errorf("building %s: %w", pkg, err)
	}
	cmd := exec.CommandContext(ctx, "go",
		append([]string{"build", "-C", root, "-o", out}, append(buildFlags(), pkg)...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, msg)
	}
	return nil
}

// buildFlags are the flags of `make build` that Go's build cache depends on. With other flags Go
// compiles every package again, which takes minutes.
func buildFlags() []string { return []string{"-trimpath"} }

// placeProgram links a program that was built before to out, or copies it from another file system.
func placeProgram(ctx context.Context, built, out string) error {
	if !filepath.IsAbs(built) || !isFile(built) {
		return fmt.Errorf("$%s has no program %q: run make build and name the absolute path of bin, or unset it",
			EnvPrograms, built)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	// cp, because a copy that this process writes can't be executed while a child that it forks
	// meanwhile has the file open.
	if msg, err := exec.CommandContext(ctx, "cp", "-l", "-f", "--", built, out).CombinedOutput(); err == nil {
		return nil
	} else if plain, err := exec.CommandContext(ctx, "cp", "-f", "--", built, out).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w: %s%s", built, err, msg, plain)
	}
	return nil
}
