// Package git reads the git repositories of the workspace for clients: changes, diffs and commits.
package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
)

// MaxFile bounds one side of a diff, in bytes.
const MaxFile = 1 << 20

// Limits of the git program.
const (
	programTime = 30 * time.Second
	maxRequests = 4        // programs at a time
	maxListing  = 16 << 20 // bytes of a listing
	maxIndex    = 256 << 20
)

var (
	errNoRepository = errors.New("not a git repository")
	errTooLong      = errors.New("git's output is too long")
)

// refusal is a failure that a client may see.
type refusal struct{ text string }

// Error says what git refused.
func (e *refusal) Error() string { return e.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// repository is a git repository as the git program is shown it. Its files belong to an agent, which
// may mean harm: a repository's own configuration can name programs that git runs (filters, external
// diffs, text conversions, file system monitors, hooks, helpers of remotes). So every command that
// looks at content runs with a git directory of our own, which has no configuration, and reads
// objects and the working tree of the repository and a copy of its index. It writes only there.
type repository struct {
	root  string // the working tree
	index string // the repository's index
	own   string // our git directory
	env   []string
}

// openRepository opens the repository that path, a directory, is in. close removes what it made.
func openRepository(ctx context.Context, path string) (*repository, error) {
	if st, err := os.Stat(path); err != nil || !st.IsDir() || !inRepository(path) {
		return nil, errNoRepository
	}
	if _, err := exec.LookPath("git"); err != nil {
		return nil, refuse("git is not installed in this sandbox")
	}
	r := &repository{root: path}
	// These commands read configuration but run nothing of it.
	text, err := r.refs(ctx, "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-path", "objects",
		"--git-path", "index", "--git-path", "info/exclude", "--git-path", "shallow", "--show-object-format")
	if err != nil {
		if errors.As(err, new(*refusal)) {
			return nil, errNoRepository
		}
		return nil, err
	}
	lines := strings.Split(text, "\n")
	if len(lines) != 6 {
		return nil, refuse("git's answer about the repository can't be read")
	}
	r.root, r.index = lines[0], lines[2]
	if r.own, err = os.MkdirTemp("", "bivouac-git-"); err != nil {
		return nil, err
	}
	r.env = []string{
		"GIT_DIR=" + r.own, "GIT_WORK_TREE=" + r.root, "GIT_OBJECT_DIRECTORY=" + filepath.Join(r.own, "objects"),
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + quoteAlternate(lines[1]),
	}
	if _, err := os.Lstat(lines[4]); err == nil {
		r.env = append(r.env, "GIT_SHALLOW_FILE="+lines[4])
	}
	if err := r.skeleton(lines[3], lines[5]); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// quoteAlternate quotes a directory for the list of alternates, which is separated by colons.
func quoteAlternate(dir string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(dir) + `"`
}

// skeleton fills our git directory.
func (r *repository) skeleton(exclude, format string) error {
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
	if format != "sha1" {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectformat = " + format + "\n"
	}
	var errs []error
	for _, dir := range []string{"objects", "refs", "info"} {
		errs = append(errs, os.Mkdir(filepath.Join(r.own, dir), 0o700))
	}
	excluded, err := readBounded(exclude, MaxFile)
	if err != nil {
		excluded = nil // most repositories exclude nothing of their own
	}
	for name, text := range map[string][]byte{
		"HEAD":         []byte("ref: refs/heads/none\n"),
		"config":       []byte(config),
		"info/exclude": excluded,
	} {
		errs = append(errs, os.WriteFile(filepath.Join(r.own, name), text, 0o600))
	}
	return errors.Join(errs...)
}

// readBounded reads a regular file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK the open of a fifo would wait.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > limit {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", path, limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// copyIndex copies the repository's index with its time, by which git knows what changed since.
func (r *repository) copyIndex() error {
	b, err := readBounded(r.index, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was ever added
	}
	if err != nil {
		return refuse("the repository's index can't be read")
	}
	st, err := os.Stat(r.index)
	if err != nil {
		return err
	}
	own := filepath.Join(r.own, "index")
	if err := os.WriteFile(own, b, 0o600); err != nil {
		return err
	}
	return os.Chtimes(own, st.ModTime(), st.ModTime())
}

func (r *repository) close() {
	if r.own != "" {
		_ = os.RemoveAll(r.own) // a rest of it is in the directory of temporary files
	}
}

// inRepository reports whether a directory or one above it has a .git.
func inRepository(path string) bool {
	for {
		if _, err := os.Lstat(filepath.Join(path, ".git")); err == nil {
			return true
		}
		parent := filepath.Dir(path)
		if parent == path {
			return false
		}
		path = parent
	}
}

// refs runs a command that reads references of the repository and runs nothing of it.
func (r *repository) refs(ctx context.Context, args ...string) (string, error) {
	out, err := r.exec(ctx, nil, maxListing, args...)
	return strings.TrimSpace(string(out)), err
}

// look runs a command that looks at content, with our git directory.
func (r *repository) look(ctx context.Context, limit int, args ...string) ([]byte, error) {
	return r.exec(ctx, r.env, limit, args...)
}

// exec runs git in the working tree and returns its output. A command that fails is a refusal.
func (r *repository) exec(ctx context.Context, env []string, limit int, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	safe := []string{
		"--no-pager", "--literal-pathspecs", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c",
		"core.fsmonitor=false",
		"-c", "core.quotePath=false", "-c", "core.untrackedCache=false", "-c", "protocol.allow=never",
	}
	cmd := exec.CommandContext(ctx, "git", append(safe, args...)...)
	cmd.Dir = r.root
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1",
		"GIT_ALLOW_PROTOCOL=none",
		"GIT_NO_REPLACE_OBJECTS=1",
	}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: credential.FromContext(ctx)}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, fault := &limitedBuffer{limit: limit, full: cancel}, &limitedBuffer{limit: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, fault
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case out.over:
		return nil, errTooLong
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, refuse("git did not end within %v", programTime)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &exit):
		return nil, refuse("git %s failed with code %d: %s", args[0], exit.ExitCode(), strings.TrimSpace(fault.String()))
	case err != nil:
		return nil, fmt.Errorf("running git: %w", err)
	}
	return out.Bytes(), nil
}

// limitedBuffer keeps the first bytes written to it. full, if set, is called when there are more.
type limitedBuffer struct {
	bytes.Buffer
	limit int
	over  bool
	full  func()
}

// Write keeps what fits and never fails.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := b.limit - b.Len(); len(p) > room {
		_, _ = b.Buffer.Write(p[:room]) // never fails
		b.over = true
		if b.full != nil {
			b.full()
		}
		return len(p), nil
	}
	return b.Buffer.Write(p)
}

// commit resolves a revision to a commit's name, "" if it names none.
func (r *repository) commit(ctx context.Context, revision string) string {
	out, err := r.refs(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return ""
	}
	return out
}

// empty returns the name of the tree without entries.
func (r *repository) empty(ctx context.Context) (string, error) {
	// Its name depends on the object format.
	out, err := r.look(ctx, maxListing, "hash-object", "-t", "tree", "--stdin")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(out)), nil
}

// base chooses what a conversation's changes are compared with: the given revision; or the branch of
// the same name of origin unless it holds everything; the commit where HEAD left origin's default
// branch, or main or master where there is no origin; HEAD; nothing for a new repository.
func (r *repository) base(ctx context.Context, revision string) (string, error) {
	head := r.commit(ctx, "HEAD")
	switch {
	case revision == "HEAD" && head == "", revision == "" && head == "":
		return r.empty(ctx)
	case revision != "":
		if sha := r.commit(ctx, revision); sha != "" {
			return sha, nil
		}
		return "", refuse("%s names no commit of this repository", strconv.Quote(revision))
	}
	branch, _ := r.refs(ctx, "symbolic-ref", "--short", "--quiet", "HEAD") // empty where HEAD is detached
	if branch != "" {
		if sha := r.commit(ctx, "refs/remotes/origin/"+branch); sha != "" && (sha != head || r.dirty(ctx, head)) {
			return sha, nil
		}
	}
	candidates := []string{"refs/remotes/origin/HEAD"}
	if r.commit(ctx, candidates[0]) == "" {
		candidates = []string{
			"refs/remotes/origin/main",
			"refs/remotes/origin/master",
			"refs/heads/main",
			"refs/heads/master",
		}
	}
	for _, name := range candidates {
		if name == "refs/heads/"+branch || r.commit(ctx, name) == "" {
			continue
		}
		if sha, err := r.refs(ctx, "merge-base", "HEAD", name); err == nil && sha != "" {
			return sha, nil
		}
		return r.commit(ctx, name), nil
	}
	return head, nil
}

// dirty reports whether tracked files differ from a commit.
func (r *repository) dirty(ctx context.Context, commit string) bool {
	if r.copyIndex() != nil {
		return true
	}
	out, err := r.look(ctx, maxListing, diffArgs(commit)...)
	return err != nil || len(out) > 0
}

// diffArgs lists the files that differ from the given trees, each a status and one or two names.
func diffArgs(trees ...string) []string {
	args := []string{
		"diff",
		"--name-status",
		"-z",
		"--no-renames",
		"--no-ext-diff",
		"--no-textconv",
		"--ignore-submodules=dirty",
	}
	return append(append(args, trees...), "--")
}
