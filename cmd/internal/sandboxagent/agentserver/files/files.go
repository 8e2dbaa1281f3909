// Package files serves the files of the workspace to clients: uploads, downloads, archives, listings.
package files

import (
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
)

// API has the routes of the workspace's files.
type API struct{ cfg config.Config }

// New returns the API. It uses the files as the configuration's tools' user.
func New(cfg config.Config) *API { return &API{cfg: cfg} }

// absPath reads the path parameter, or responds 400.
func absPath(w http.ResponseWriter, r *http.Request) (string, bool) {
	p := r.URL.Query().Get("path")
	if !filepath.IsAbs(p) {
		wire.WriteDetail(w, http.StatusBadRequest, "Path must be absolute")
		return "", false
	}
	return filepath.Clean(p), true
}

// failed responds to a file operation's error.
func (a *API) failed(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, fs.ErrPermission) {
		wire.WriteDetail(w, http.StatusForbidden, "Permission denied")
		return
	}
	wire.WriteFailure(w, r, a.cfg.Logger, err)
}

// HandleUpload handles POST /api/file/upload?path=. It stores the multipart field "file"
// atomically; only the owner can read the file.
func (a *API) HandleUpload(w http.ResponseWriter, r *http.Request) {
	path, ok := absPath(w, r)
	if !ok {
		return
	}
	mr, err := r.MultipartReader()
	if err != nil {
		wire.WriteInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"body", "file"}, Msg: "Field required"}})
		return
	}
	for {
		part, err := mr.NextPart()
		if err != nil {
			wire.WriteInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"body", "file"}, Msg: "Field required"}})
			return
		}
		if part.FormName() != "file" {
			continue
		}
		a.storeUpload(w, r, path, part)
		return
	}
}

func (a *API) storeUpload(w http.ResponseWriter, r *http.Request, path string, from io.Reader) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		wire.WriteDetail(w, http.StatusBadRequest, "Path is not a file")
		return
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	var f *renameio.PendingFile
	if err == nil {
		f, err = renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)),
			renameio.WithStaticPermissions(0o600))
	}
	if err != nil {
		a.failed(w, r, err)
		return
	}
	defer func() { _ = f.Cleanup() }() // nothing is left after a success
	if _, err = io.Copy(f, from); err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			wire.WriteDetail(w, http.StatusRequestEntityTooLarge, "Request body is too large")
			return
		}
		a.failed(w, r, err)
		return
	}
	wire.WriteJSON(w, http.StatusOK, wire.Success{Success: true})
}

// HandleDownload handles GET /api/file/download?path=.
func (a *API) HandleDownload(w http.ResponseWriter, r *http.Request) {
	path, ok := absPath(w, r)
	if !ok {
		return
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		wire.WriteDetail(w, http.StatusNotFound, "File not found")
		return
	case err != nil:
		a.failed(w, r, err)
		return
	case !st.Mode().IsRegular():
		wire.WriteDetail(w, http.StatusBadRequest, "Path is not a file")
		return
	}
	f, err := os.Open(path)
	if err != nil {
		a.failed(w, r, err)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition",
		mime.FormatMediaType("attachment", map[string]string{"filename": filepath.Base(path)}))
	http.ServeContent(w, r, "", st.ModTime(), f)
}

// HandleCreateDirectory handles POST /api/file/create_directory?path=.
func (a *API) HandleCreateDirectory(w http.ResponseWriter, r *http.Request) {
	path, ok := absPath(w, r)
	if !ok {
		return
	}
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		wire.WriteDetail(w, http.StatusBadRequest, "Path exists and is not a directory")
		return
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		a.failed(w, r, err)
		return
	}
	wire.WriteJSON(w, http.StatusOK, wire.Success{Success: true})
}
