package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"bivouac.dev/bivouac/deploy/local"
)

// baseFile names the commit that the guard measures against, in its first line that is no comment.
const baseFile = "ops/bench/BASE"

// baseCommit reads baseFile.
func baseCommit(root string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(baseFile)))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return line, nil
		}
	}
	return "", fmt.Errorf("%s names no commit: write one into it", baseFile)
}

// git returns the output of a git command in the tree.
func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// resolve returns a commit's whole hash.
func resolve(ctx context.Context, root, commit string) (string, error) {
	hash, err := git(ctx, root, "rev-parse", "--verify", "--quiet", "--end-of-options", commit+"^{commit}")
	if err == nil {
		return hash, nil
	}
	shallow, shallowErr := git(ctx, root, "rev-parse", "--is-shallow-repository")
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case shallowErr != nil:
		return "", fmt.Errorf("the commit to measure against comes from git, and %s is no checkout: %w", root, shallowErr)
	case shallow == "true":
		return "", fmt.Errorf("commit %q is not in this checkout, which is shallow: run git fetch --unshallow, "+
			"or let CI check out the whole history", commit)
	}
	return "", fmt.Errorf("git knows no commit %q: name another one in %s, or with make bench-guard BASE=COMMIT", commit,
		baseFile)
}

// programOf returns the path of the program of a commit, which is built into the cache once. It is
// built with the same Go and the same flags as this tree's.
func programOf(ctx context.Context, root, hash string, progress io.Writer) (string, error) {
	return local.BuildOnce(ctx, "bivouac-"+hash[:12]+"-"+runtime.Version(), 2, progress, func(out string) error {
		tmp, err := os.MkdirTemp("", "bivouac-base-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		tar, tree := filepath.Join(tmp, "tree.tar"), filepath.Join(tmp, "tree")
		if err := os.Mkdir(tree, 0o700); err != nil {
			return err
		}
		if _, err := git(ctx, root, "archive", "--format=tar", "-o", tar, hash); err != nil {
			return err
		}
		if msg, err := exec.CommandContext(ctx, "tar", "-xf", tar, "-C", tree).CombinedOutput(); err != nil {
			return fmt.Errorf("unpacking commit %s: %w\n%s", hash, err, msg)
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-C", tree, "-trimpath", "-o", out, "./cmd/bivouac")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building commit %s: %w\n%s", hash, err, msg)
		}
		return nil
	})
}
