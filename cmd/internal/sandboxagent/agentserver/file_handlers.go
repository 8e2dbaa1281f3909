package agentserver

import (
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"bivouac.dev/bivouac/httpapi/decode"
)

// absPath reads the path parameter, or responds 400.
func absPath(w http.ResponseWriter, r *http.Request) (string, bool) {
	p := r.URL.Query().Get("path")
	if !filepath.IsAbs(p) {
		writeDetail(w, http.StatusBadRequest, "Path must be absolute")
		return "", false
	}
	return filepath.Clean(p), true
}

// fileFailed responds to a file operation's error.
func (s *Server) fileFailed(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, fs.ErrPermission) {
		writeDetail(w, http.StatusForbidden, "Permission denied")
		return
	}
	s.failed(w, r, err)
}

// handleFileUpload handles POST /api/file/upload?path=. It stores the multipart field "file"
// atomically; only the owner can read the file.
func (s *Server) handleFileUpload(w http.ResponseWriter, r *http.Request) {
	path, ok := absPath(w, r)
	if !ok {
		return
	}
	mr, err := r.MultipartReader()
	if err != nil {
		writeInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"body", "file"}, Msg: "Field required"}})
		return
	}
	for {
		part, err := mr.NextPart()
		if err != nil {
			writeInvalid(w, []decode.Problem{{Type: "missing", Loc: []string{"body", "file"}, Msg: "Field required"}})
			return
		}
		if part.FormName() != "file" {
			continue
		}
		s.storeUpload(w, r, path, part)
		return
	}
}

func (s *Server) storeUpload(w http.ResponseWriter, r *http.Request, path string, from io.Reader) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		writeDetail(w, http.StatusBadRequest, "Path is not a file")
		return
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	var f *renameio.PendingFile
	if err == nil {
		f, err = renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)),
			renameio.WithStaticPermissions(0o600))
	}
	if err != nil {
		s.fileFailed(w, r, err)
		return
	}
	defer func() { _ = f.Cleanup() }() // nothing is left after a success
	if _, err = io.Copy(f, from); err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			writeDetail(w, http.StatusRequestEntityTooLarge, "Request body is too large")
			return
		}
		s.fileFailed(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, success{Success: true})
}

// handleFileDownload handles GET /api/file/download?path=.
func (s *Server) handleFileDownload(w http.ResponseWriter, r *http.Request) {
	path, ok := absPath(w, r)
	if !ok {
		return
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		writeDetail(w, http.StatusNotFound, "File not found")
		return
	case err != nil:
		s.fileFailed(w, r, err)
		return
	case !st.Mode().IsRegular():
		writeDetail(w, http.StatusBadRequest, "Path is not a file")
		return
	}
	f, err := os.Open(path)
	if err != nil {
		s.fileFailed(w, r, err)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition",
		mime.FormatMediaType("attachment", map[string]string{"filename": filepath.Base(path)}))
	http.ServeContent(w, r, "", st.ModTime(), f)
}

// handleCreateDirectory handles POST /api/file/create_directory?path=.
func (s *Server) handleCreateDirectory(w http.ResponseWriter, r *http.Request) {
	path, ok := absPath(w, r)
	if !ok {
		return
	}
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		writeDetail(w, http.StatusBadRequest, "Path exists and is not a directory")
		return
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		s.fileFailed(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, success{Success: true})
}
