package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"bivouac.dev/bivouac/deploy/local"
)

// The versions of the peers. They are also in the go.mod files below etcd and rqlite, and in
// the programs' names in the cache.
const (
	etcdVersion   = "3.7.3"
	rqliteVersion = "8.36.0"
	raftVersion   = "1.7.3"
)

const rqliteModule = "github.com/rqlite/rqlite/v8"

// programs are the paths of the measured programs.
type programs struct {
	etcd, rqlite, mended string
	// bivouac and alone are built anew each time: the current tree is measured.
	bivouac, alone string
}

// build builds the missing programs. The peers stay in the cache where deploy/local keeps Nomad
// and Vault. Ours are built into the run's folder.
func (b *bench) build(ctx context.Context) (programs, error) {
	root, err := local.Root()
	if err != nil {
		return programs{}, err
	}
	here := filepath.Join(root, "ops", "bench", "peers")
	p := programs{bivouac: b.program, alone: filepath.Join(b.dir, "bin", "alone")}
	if p.bivouac == "" {
		p.bivouac = filepath.Join(b.dir, "bin", "bivouac")
		if err := local.BuildGo(ctx, "./cmd/bivouac", p.bivouac); err != nil {
			return programs{}, err
		}
	}
	if err := goBuild(ctx, here, p.alone, "./alone"); err != nil {
		return programs{}, err
	}
	for _, peer := range []struct {
		system, name string
		path         *string
		build        func(out string) error
	}{
		{sysEtcd, "etcd-" + etcdVersion, &p.etcd, func(out string) error {
			return goBuild(ctx, filepath.Join(here, "etcd"), out, "go.etcd.io/etcd/server/v3")
		}},
		{sysRqlite, "rqlited-" + rqliteVersion, &p.rqlite, func(out string) error {
			return goBuild(ctx, filepath.Join(here, "rqlite"), out, rqliteModule+"/cmd/rqlited")
		}},
		{sysMended, "rqlited-" + rqliteVersion + "-mended", &p.mended, func(out string) error {
			return buildMended(ctx, filepath.Join(here, "rqlite"), out)
		}},
	} {
		if !b.wants(peer.system) {
			continue
		}
		if *peer.path, err = local.BuildOnce(ctx, peer.name, 3, b.stdout, peer.build); err != nil {
			return programs{}, err
		}
	}
	return p, nil
}

// goBuild builds a package in a module's folder.
func goBuild(ctx context.Context, dir, out string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go",
		append([]string{"build", "-C", dir, "-trimpath", "-ldflags", "-s -w", "-o", out}, args...)...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", filepath.Base(out), err, msg)
	}
	return nil
}

// buildMended builds rqlite from a copy of its module with the fixes of mend.patch.
func buildMended(ctx context.Context, dir, out string) error {
	tmp, err := os.MkdirTemp("", "bivouac-rqlite-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	list := exec.CommandContext(ctx, "go", "list", "-C", dir, "-m", "-f", "{{.Dir}}", rqliteModule)
	list.Env = append(os.Environ(), "GOWORK=off")
	source, err := list.Output()
	if err != nil {
		return fmt.Errorf("finding rqlite's source: %w", err)
	}
	copied := filepath.Join(tmp, "rqlite")
	if err := os.CopyFS(copied, os.DirFS(strings.TrimSpace(string(source)))); err != nil {
		return err
	}
	for _, step := range [][]string{
		{"git", "-C", copied, "apply", filepath.Join(dir, "mend.patch")},
		{"cp", filepath.Join(dir, "go.mod"), filepath.Join(tmp, "mended.mod")},
		{"cp", filepath.Join(dir, "go.sum"), filepath.Join(tmp, "mended.sum")},
		{"go", "mod", "edit", "-replace", rqliteModule + "=" + copied, filepath.Join(tmp, "mended.mod")},
	} {
		cmd := exec.CommandContext(ctx, step[0], step[1:]...)
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("mending rqlite: %s: %w\n%s", strings.Join(step, " "), err, msg)
		}
	}
	return goBuild(ctx, dir, out, "-modfile", filepath.Join(tmp, "mended.mod"), rqliteModule+"/cmd/rqlited")
}
