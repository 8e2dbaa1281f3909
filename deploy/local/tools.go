package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tool is a program that is built from deploy/tools if it is missing.
type tool struct {
	name    string
	version string // the pinned version, also in the cached file's name
	oldest  string // the oldest accepted on PATH
	pkg     string
	flags   []string
	minutes int    // a cold build on two cores
	source  string // its module; "" is deploy/tools/<name>
}

// tools are the pinned programs; the flags are those of deploy/tools.
func tools() []tool {
	return []tool{
		{
			name:    "nomad",
			version: "1.11.3",
			oldest:  "1.10.0",
			pkg:     "github.com/hashicorp/nomad",
			flags:   []string{"-ldflags", "-s -w"},
			minutes: 4,
		},
		{
			name:    "vault",
			version: "1.21.0",
			oldest:  "1.16.0",
			pkg:     "github.com/hashicorp/vault",
			flags:   []string{"-tags", "minimal", "-ldflags", "-s -w"},
			minutes: 4,
		},
	}
}

// Tool returns the path of "nomad" or "vault": the one on PATH if it is recent enough, else the
// one in the cache. If that is missing it is built, which takes minutes; progress receives
// lines about it, and nil is silent. Concurrent processes build it once. The cache is
// $BIVOUAC_CACHE/bin, by default bivouac/bin in the user's cache directory.
func Tool(ctx context.Context, name string, progress io.Writer) (string, error) {
	for _, t := range tools() {
		if t.name == name {
			return t.find(ctx, progress)
		}
	}
	return "", fmt.Errorf("finding %s: not a tool of deploy/tools", name)
}

func (t tool) find(ctx context.Context, progress io.Writer) (string, error) {
	if path, err := exec.LookPath(t.name); err == nil && recent(ctx, path, t.oldest) {
		return path, nil
	}
	return BuildOnce(ctx, t.name+"-"+t.version, t.minutes, progress, func(out string) error { return t.build(ctx, out) })
}

// BuildOnce returns the path of a program in the cache of Tool. If it is missing, build makes it
// beside its final path, so that an interrupted build leaves no incomplete program; it takes about so
// many minutes on two cores.
func BuildOnce(
	ctx context.Context,
	name string,
	minutes int,
	progress io.Writer,
	build func(out string) error,
) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if isFile(path) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	unlock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	defer unlock()
	if isFile(path) { // another process built it meanwhile
		return path, nil
	}
	if progress == nil {
		progress = io.Discard
	}
	tmp := path + ".new"
	defer os.Remove(tmp)
	fmt.Fprintf(progress, "building %s from source, once (about %d minutes on two cores) into %s\n", name, minutes, path)
	done := tick(progress, "building "+name)
	err = build(tmp)
	done()
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	return path, os.Rename(tmp, path)
}

// build builds the program.
func (t tool) build(ctx context.Context, out string) error {
	source := t.source
	if source == "" {
		root, err := Root()
		if err != nil {
			return err
		}
		source = filepath.Join(root, "deploy", "tools", t.name)
	}
	args := append([]string{"build", "-C", source}, t.flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", out, t.pkg)...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	return nil
}

// tick writes a line every ten seconds until the returned function is called.
func tick(w io.Writer, what string) func() {
	stop, stopped := make(chan struct{}), make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(stopped)
		t := time.NewTicker(10 * time.Second)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				fmt.Fprintf(w, "  still %s (%s)\n", what, time.Since(begun).Round(time.Second))
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

func cacheDir() (string, error) {
	dir := os.Getenv("BIVOUAC_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding the cache directory (set BIVOUAC_CACHE): %w", err)
		}
		dir = filepath.Join(user, "bivouac")
	}
	return filepath.Join(dir, "bin"), nil
}

// Root returns the root of the Bivouac tree that contains the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(raw), "module bivouac.dev/bivouac\n") {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("the working directory is not in the Bivouac tree (no go.mod of bivouac.dev/bivouac above it)")
		}
		dir = up
	}
}

var versionRE = regexp.MustCompile(`v(\d+\.\d+\.\d+)`)

// recent reports whether the program's version is at least oldest.
func recent(ctx context.Context, path, oldest string) bool {
	out, err := exec.CommandContext(ctx, path, "version").Output()
	if err != nil {
		return false
	}
	m := versionRE.FindSubmatch(out)
	return m != nil && !versionLess(string(m[1]), oldest)
}

func versionLess(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[i])
		y, _ := strconv.Atoi(bs[i])
		if x != y {
			return x < y
		}
	}
	return len(as) < len(bs)
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// lockFile waits for an exclusive lock. The lock ends with the process at the latest.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
