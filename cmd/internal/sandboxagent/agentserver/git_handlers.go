package agentserver

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
)

// gitRequestTime bounds one request, which may run several programs.
const gitRequestTime = 2 * time.Minute

// gitRequest reads the path of a request and waits for a place. done gives it back. If ok is false
// it has responded with the error.
func (s *Server) gitRequest(
	w http.ResponseWriter,
	r *http.Request,
) (ctx context.Context, path string, done func(), ok bool) {
	path = r.URL.Query().Get("path")
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		writeDetail(w, http.StatusBadRequest, "Path must be absolute")
		return nil, "", nil, false
	}
	ctx, cancel := context.WithTimeout(r.Context(), gitRequestTime)
	select {
	case s.gits <- struct{}{}:
		return ctx, filepath.Clean(path), func() { <-s.gits; cancel() }, true
	case <-ctx.Done():
		cancel()
		writeDetail(w, http.StatusServiceUnavailable, "Too many git requests are running")
		return nil, "", nil, false
	}
}

// gitAnswer responds with v, or with the error: 400 for what git refused.
func (s *Server) gitAnswer(w http.ResponseWriter, r *http.Request, v any, err error) {
	var refusal *gitError
	switch {
	case errors.As(err, &refusal):
		writeDetail(w, http.StatusBadRequest, refusal.text)
	case errors.Is(err, errGitTooLong):
		writeDetail(w, http.StatusBadRequest, "There are too many changes to list")
	case errors.Is(err, context.DeadlineExceeded):
		writeDetail(w, http.StatusBadRequest, "git did not end in time")
	case err != nil && r.Context().Err() != nil: // the client has left
	case err != nil:
		s.failed(w, r, err)
	default:
		writeJSON(w, http.StatusOK, v)
	}
}

// handleGitChanges handles GET /api/git/changes?path=&ref=.
func (s *Server) handleGitChanges(w http.ResponseWriter, r *http.Request) {
	ctx, path, done, ok := s.gitRequest(w, r)
	if !ok {
		return
	}
	defer done()
	list, err := changesAt(ctx, path, r.URL.Query().Get("ref"))
	s.gitAnswer(w, r, list, err)
}

// handleGitDiff handles GET /api/git/diff?path=&ref=&commit=.
func (s *Server) handleGitDiff(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	commit := q.Get("commit")
	switch {
	case commit != "" && q.Get("ref") != "":
		writeDetail(w, http.StatusBadRequest, "'ref' and 'commit' are mutually exclusive")
		return
	case commit != "" && !validCommit(w, commit, "query", "commit"):
		return
	}
	ctx, path, done, ok := s.gitRequest(w, r)
	if !ok {
		return
	}
	defer done()
	diff, err := fileDiff(ctx, path, q.Get("ref"), commit)
	s.gitAnswer(w, r, diff, err)
}

// validCommit checks a commit's name, or responds 422.
func validCommit(w http.ResponseWriter, name string, loc ...string) bool {
	const pattern = "^[0-9a-fA-F]{4,64}$"
	if regexp.MustCompile(pattern).MatchString(name) {
		return true
	}
	writeInvalid(w, []decode.Problem{{Type: "string_pattern_mismatch", Loc: loc,
		Msg:   "String should match pattern '" + pattern + "'",
		Input: decode.Truncate(name, 64), Ctx: map[string]any{"pattern": pattern}}})
	return false
}

// handleGitCommits handles GET /api/git/commits?path=&limit=.
func (s *Server) handleGitCommits(w http.ResponseWriter, r *http.Request) {
	var problems decode.Problems
	limit := decode.Query{Values: r.URL.Query(), Problems: &problems}.Integer("limit", 50, 0, 200)
	if problems.Err() != nil {
		writeInvalid(w, problems.List)
		return
	}
	ctx, path, done, ok := s.gitRequest(w, r)
	if !ok {
		return
	}
	defer done()
	page, err := commitLog(ctx, path, int(limit))
	s.gitAnswer(w, r, page, err)
}

// handleGitCommitChanges handles GET /api/git/commits/{sha}/changes?path=.
func (s *Server) handleGitCommitChanges(w http.ResponseWriter, r *http.Request) {
	sha := r.PathValue("sha")
	if !validCommit(w, sha, "path", "sha") {
		return
	}
	ctx, path, done, ok := s.gitRequest(w, r)
	if !ok {
		return
	}
	defer done()
	list, err := commitChanges(ctx, path, sha)
	s.gitAnswer(w, r, list, err)
}
