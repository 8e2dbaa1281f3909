package git

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxNested     = 50     // repositories below the asked directory
	maxGitChanges = 10_000 // of one answer
)

// Change is one changed file. The status is ADDED, DELETED or UPDATED: a moved file is deleted
// and added.
type Change struct {
	Status string `json:"status"`
	Path   string `json:"path"`
}

// Diff has both sides of a changed file: null outside a repository, empty where there is no text.
type Diff struct {
	Modified *string `json:"modified"`
	Original *string `json:"original"`
}

// Commit is one commit in a list.
type Commit struct {
	SHA       string `json:"sha"`
	ShortSHA  string `json:"short_sha"`
	Subject   string `json:"subject"`
	Author    string `json:"author"`
	Timestamp string `json:"timestamp"`
}

// Commits are the newest commits, newest first.
type Commits struct {
	Commits []Commit `json:"commits"`
	HasMore bool     `json:"has_more"`
}

// parseChanges reads the output of diffArgs.
func parseChanges(out []byte) []Change {
	statuses := map[string]string{"A": "ADDED", "D": "DELETED"}
	fields := strings.Split(string(out), "\x00")
	var list []Change
	for i := 0; i+1 < len(fields); i += 2 {
		status := statuses[fields[i]]
		if status == "" {
			status = "UPDATED" // content, mode, type, or unmerged
		}
		list = append(list, Change{status, fields[i+1]})
	}
	return list
}

// changes lists what differs from the base: tracked files, and new ones that are not ignored.
func (r *repository) changes(ctx context.Context, revision string) ([]Change, error) {
	base, err := r.base(ctx, revision)
	if err != nil {
		return nil, err
	}
	if err := r.copyIndex(); err != nil {
		return nil, err
	}
	out, err := r.look(ctx, maxListing, diffArgs(base)...)
	if err != nil {
		return nil, err
	}
	list := parseChanges(out)
	if out, err = r.look(ctx, maxListing, "ls-files", "--others", "--exclude-standard", "-z"); err != nil {
		return nil, err
	}
	for name := range bytes.SplitSeq(out, []byte{0}) {
		if n := string(name); n != "" && !strings.HasSuffix(n, "/") { // a repository in it ends with /
			list = append(list, Change{"ADDED", n})
		}
	}
	return list, nil
}

// changesAt lists the changes of the repository at path and of those directly below it.
func changesAt(ctx context.Context, path, revision string) ([]Change, error) {
	nested := nestedRepositories(path)
	list, err := changesOf(ctx, path, revision)
	switch {
	case errors.Is(err, errNoRepository):
		list = nil
	case err != nil:
		return nil, err
	}
	list = slices.DeleteFunc(list, func(c Change) bool {
		return slices.ContainsFunc(nested, func(n string) bool { return c.Path == n || strings.HasPrefix(c.Path, n+"/") })
	})
	for _, name := range nested {
		below, err := changesOf(ctx, filepath.Join(path, name), revision)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			continue // one that can't be read hides no other
		}
		for _, c := range below {
			list = append(list, Change{c.Status, name + "/" + c.Path})
		}
	}
	slices.SortFunc(list, func(a, b Change) int {
		return strings.Compare(a.Path+"\x00"+a.Status, b.Path+"\x00"+b.Status)
	})
	list = slices.CompactFunc(list, func(a, b Change) bool { return a.Path == b.Path && a.Status == b.Status })
	if list == nil {
		list = []Change{}
	}
	return list[:min(len(list), maxGitChanges)], nil
}

func changesOf(ctx context.Context, path, revision string) ([]Change, error) {
	r, err := openRepository(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.changes(ctx, revision)
}

// nestedRepositories names the directories directly below path that are repositories of their own.
func nestedRepositories(path string) []string {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() || len(names) == maxNested {
			continue
		}
		if _, err := os.Lstat(filepath.Join(path, e.Name(), ".git")); err == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// fileDiff compares a file with the base, or a commit with its first parent where commit is set.
func fileDiff(ctx context.Context, path, revision, commit string) (Diff, error) {
	r, err := openRepository(ctx, existing(filepath.Dir(path)))
	if errors.Is(err, errNoRepository) {
		return Diff{}, nil
	}
	if err != nil {
		return Diff{}, err
	}
	defer r.close()
	name, ok := r.relative(path)
	if !ok {
		return Diff{}, refuse("%s is not in the repository %s", path, r.root)
	}
	if commit != "" {
		sha := r.commit(ctx, commit)
		if sha == "" {
			return Diff{}, refuse("%s names no commit of this repository", commit)
		}
		parent, err := r.parent(ctx, sha)
		if err != nil {
			return Diff{}, err
		}
		return r.sides(func() (string, bool, error) { return r.blob(ctx, parent, name) },
			func() (string, bool, error) { return r.blob(ctx, sha, name) }, path)
	}
	base, err := r.base(ctx, revision)
	if err != nil {
		return Diff{}, err
	}
	return r.sides(func() (string, bool, error) { return r.blob(ctx, base, name) },
		func() (string, bool, error) { return workingFile(path) }, path)
}

// sides reads both sides; a file that neither has is an error.
func (r *repository) sides(original, modified func() (string, bool, error), path string) (Diff, error) {
	before, had, err := original()
	if err != nil {
		return Diff{}, err
	}
	after, has, err := modified()
	if err != nil {
		return Diff{}, err
	}
	if !had && !has {
		return Diff{}, refuse("File does not exist: %s", path)
	}
	return Diff{Modified: &after, Original: &before}, nil
}

// existing returns the path or the nearest directory above it that exists: a deleted file's may not.
func existing(path string) string {
	for {
		if st, err := os.Stat(path); err == nil && st.IsDir() || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// relative returns the name of a path in the repository. Symbolic links above the file are followed.
func (r *repository) relative(path string) (string, bool) {
	dir := existing(filepath.Dir(path))
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", false
	}
	root, err := filepath.EvalSymlinks(r.root)
	if err != nil {
		return "", false
	}
	name, err := filepath.Rel(root, real+strings.TrimPrefix(path, strings.TrimSuffix(dir, "/")))
	if err != nil || !filepath.IsLocal(name) {
		return "", false
	}
	return name, true
}

// blob reads a file of a tree. Text that is not UTF-8 is empty.
func (r *repository) blob(ctx context.Context, tree, name string) (text string, found bool, err error) {
	out, err := r.look(ctx, MaxFile, "cat-file", "blob", tree+":"+name)
	switch {
	case errors.Is(err, errTooLong):
		return "", false, tooLargeDiff()
	case errors.As(err, new(*refusal)):
		return "", false, nil
	case err != nil:
		return "", false, err
	}
	return textOnly(out), true, nil
}

// workingFile reads a file of the working tree; a symbolic link's content is its target, as in git.
func workingFile(path string) (text string, found bool, err error) {
	st, err := os.Lstat(path)
	switch {
	case err != nil:
		return "", false, nil
	case st.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return target, err == nil, nil
	case !st.Mode().IsRegular():
		return "", false, refuse("%s is not a file", path)
	case st.Size() > MaxFile:
		return "", false, tooLargeDiff()
	}
	b, err := readBounded(path, MaxFile)
	if err != nil {
		return "", false, refuse("%s can't be read", path)
	}
	return textOnly(b), true, nil
}

func tooLargeDiff() error {
	return refuse("File too large for git diff (max: %d bytes)", MaxFile)
}

func textOnly(b []byte) string {
	if !utf8.Valid(b) {
		return ""
	}
	return string(b)
}

// parent returns a commit's first parent, or the empty tree.
func (r *repository) parent(ctx context.Context, sha string) (string, error) {
	if p := r.commit(ctx, sha+"^"); p != "" {
		return p, nil
	}
	return r.empty(ctx)
}

// commitLog lists the newest commits of HEAD.
func commitLog(ctx context.Context, path string, limit int) (Commits, error) {
	page := Commits{Commits: []Commit{}}
	r, err := openRepository(ctx, path)
	if errors.Is(err, errNoRepository) {
		return page, nil
	}
	if err != nil {
		return page, err
	}
	defer r.close()
	head := r.commit(ctx, "HEAD")
	if head == "" {
		return page, nil
	}
	out, err := r.look(ctx, maxListing, "log", "-z", "--no-show-signature", "--format=%H%x1f%h%x1f%an%x1f%aI%x1f%s",
		"--max-count", strconv.Itoa(limit+1), head, "--")
	if err != nil {
		return page, err
	}
	for line := range strings.SplitSeq(string(out), "\x00") {
		if f := strings.SplitN(line, "\x1f", 5); len(f) == 5 {
			page.Commits = append(page.Commits,
				Commit{SHA: f[0], ShortSHA: f[1], Author: f[2], Timestamp: f[3], Subject: f[4]})
		}
	}
	if page.HasMore = len(page.Commits) > limit; page.HasMore {
		page.Commits = page.Commits[:limit]
	}
	return page, nil
}

// commitChanges lists the files that a commit changed.
func commitChanges(ctx context.Context, path, commit string) ([]Change, error) {
	r, err := openRepository(ctx, path)
	if errors.Is(err, errNoRepository) {
		return []Change{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.close()
	sha := r.commit(ctx, commit)
	if sha == "" {
		return nil, refuse("%s names no commit of this repository", commit)
	}
	parent, err := r.parent(ctx, sha)
	if err != nil {
		return nil, err
	}
	out, err := r.look(ctx, maxListing, diffArgs(parent, sha)...)
	if err != nil {
		return nil, err
	}
	list := parseChanges(out)
	if list == nil {
		list = []Change{}
	}
	return list[:min(len(list), maxGitChanges)], nil
}
