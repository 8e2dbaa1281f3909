package files

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
	"bivouac.dev/bivouac/httpapi/decode"
)

const (
	// maxExcludes bounds the patterns of an archive.
	maxExcludes = 100
	// manifestName is the archive's last file, which says what is in it.
	manifestName = "archive_manifest.json"
)

// alwaysExcluded are directories and files that tools make again.
func alwaysExcluded() []string {
	return []string{"node_modules/", ".venv/", "venv/", "__pycache__/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/",
		"dist/", "build/", ".next/", "target/", "*.pyc"}
}

// Manifest is the archive's description of itself.
type Manifest struct {
	Excludes   []string `json:"excludes"`
	FileCount  int      `json:"file_count"`
	Format     string   `json:"format"`
	Source     string   `json:"source"`
	TotalBytes int64    `json:"total_bytes"`
}

// HandleArchive handles GET /api/file/archive?path=&format=tar.gz&exclude=: the regular files of a
// directory. Links are left out.
func (a *API) HandleArchive(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	switch q.Get("format") {
	case "tar.gz":
	case "", "git-delta":
		wire.WriteDetail(w, http.StatusBadRequest,
			"The format git-delta is not supported: use format=tar.gz, or /api/git/diff")
		return
	default:
		wire.WriteInvalid(w,
			[]decode.Problem{decode.NotOneOf([]string{"git-delta", "tar.gz"}).At(q.Get("format"), "query", "format")})
		return
	}
	excludes := slices.Concat(alwaysExcluded(), q["exclude"])
	if len(excludes) > maxExcludes || slices.ContainsFunc(excludes,
		func(p string) bool { _, err := path.Match(p, ""); return err != nil || len(p) > 200 }) {
		wire.WriteDetail(w, http.StatusBadRequest,
			fmt.Sprintf("exclude takes at most %d file name patterns of at most 200 bytes", maxExcludes))
		return
	}
	if err := credential.Do(a.cfg.Tools, func() error { return a.sendArchive(w, r, excludes) }); err != nil {
		a.cfg.Logger.Warn("an archive was not sent whole", "path", q.Get("path"), "error", err)
		panic(http.ErrAbortHandler) // so that the client sees that it is not whole
	}
}

// sendArchive responds with an archive. Its error means that a part of it was sent.
func (a *API) sendArchive(w http.ResponseWriter, r *http.Request, excludes []string) error {
	dir, ok := a.directoryAt(w, r)
	if !ok {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		a.failed(w, r, err)
		return nil
	}
	defer root.Close()
	wire.BeginDownload(w)
	w.Header().Set("Content-Type", "application/gzip")
	w.Header().Set("Content-Disposition",
		mime.FormatMediaType("attachment", map[string]string{"filename": filepath.Base(dir) + ".tar.gz"}))
	return writeArchive(r.Context(), w, root, filepath.Base(dir), excludes)
}

// writeArchive writes the files below root. A file that can't be read is left out.
func writeArchive(ctx context.Context, w io.Writer, root *os.Root, base string, excludes []string) error {
	zipped := gzip.NewWriter(w)
	t := tar.NewWriter(zipped)
	m := Manifest{Excludes: excludes, Format: "tar.gz", Source: base}
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return nil // a directory that can't be listed
		case name != "." && excluded(d.Name(), excludes):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		n, err := archiveFile(t, root, name, base)
		if err == nil && n >= 0 {
			m.FileCount++
			m.TotalBytes += n
		}
		return err
	})
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: base + "/" + manifestName, Mode: 0o644, Size: int64(len(b))}); err != nil {
		return err
	}
	if _, err := t.Write(b); err != nil {
		return err
	}
	return errors.Join(t.Close(), zipped.Close())
}

// excluded reports whether a pattern is for a name.
func excluded(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(strings.TrimRight(p, "/"), name)
		return ok && err == nil
	})
}

// archiveFile adds a file and returns its size, -1 if it can't be read. A file that shrinks meanwhile is
// filled up with zeros, as tar's readers need the size that was said.
func archiveFile(t *tar.Writer, root *os.Root, name, base string) (int64, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return -1, nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return -1, nil
	}
	h := &tar.Header{Name: base + "/" + name, Mode: int64(st.Mode().Perm()), Size: st.Size(), ModTime: st.ModTime()}
	if err := t.WriteHeader(h); err != nil {
		return -1, err
	}
	n, err := io.CopyN(t, f, st.Size())
	if errors.Is(err, io.EOF) {
		_, err = io.CopyN(t, padding{}, st.Size()-n)
	}
	return st.Size(), err
}

type padding struct{}

// Read implements io.Reader.
func (padding) Read(p []byte) (int, error) { clear(p); return len(p), nil }
