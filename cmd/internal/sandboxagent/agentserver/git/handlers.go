package git

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
)

// requestTime bounds one request, which may run several programs.
const requestTime = 2 * time.Minute

// API has the routes of the workspace's git repositories.
type API struct {
	logger *slog.Logger
	// slots has a place for each request at a time.
	slots chan struct{}
}

// New returns the API. It logs what it can't show a client.
func New(logger *slog.Logger) *API {
	return &API{logger: logger, slots: make(chan struct{}, maxRequests)}
}

// begin reads the path of a request and waits for a place. done gives it back. If ok is false
// it has responded with the error.
func (a *API) begin(
	w http.ResponseWriter,
	r *http.Request,
) (ctx context.Context, path string, done func(), ok bool) {
	path = r.URL.Query().Get("path")
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		wire.WriteDetail(w, http.StatusBadRequest, "Path must be absolute")
		return nil, "", nil, false
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTime)
	select {
	case a.slots <- struct{}{}:
		return ctx, filepath.Clean(path), func() { <-a.slots; cancel() }, true
	case <-ctx.Done():
		cancel()
		wire.WriteDetail(w, http.StatusServiceUnavailable, "Too many git requests are running")
		return nil, "", nil, false
	}
}

// respond responds with v, or with the error: 400 for what git refused.
func (a *API) respond(w http.ResponseWriter, r *http.Request, v any, err error) {
	var denied *refusal
	switch {
	case errors.As(err, &denied):
		wire.WriteDetail(w, http.StatusBadRequest, denied.text)
	case errors.Is(err, errTooLong):
		wire.WriteDetail(w, http.StatusBadRequest, "There are too many changes to list")
	case errors.Is(err, context.DeadlineExceeded):
		wire.WriteDetail(w, http.StatusBadRequest, "git did not end in time")
	case err != nil && r.Context().Err() != nil: // the client has left
	case err != nil:
		wire.WriteFailure(w, r, a.logger, err)
	default:
		wire.WriteJSON(w, http.StatusOK, v)
	}
}

// HandleChanges handles GET /api/git/changes?path=&ref=.
func (a *API) HandleChanges(w http.ResponseWriter, r *http.Request) {
	ctx, path, done, ok := a.begin(w, r)
	if !ok {
		return
	}
	defer done()
	list, err := changesAt(ctx, path, r.URL.Query().Get("ref"))
	a.respond(w, r, list, err)
}

// HandleDiff handles GET /api/git/diff?path=&ref=&commit=.
func (a *API) HandleDiff(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	commit := q.Get("commit")
	switch {
	case commit != "" && q.Get("ref") != "":
		wire.WriteDetail(w, http.StatusBadRequest, "'ref' and 'commit' are mutually exclusive")
		return
	case commit != "" && !validCommit(w, commit, "query", "commit"):
		return
	}
	ctx, path, done, ok := a.begin(w, r)
	if !ok {
		return
	}
	defer done()
	diff, err := fileDiff(ctx, path, q.Get("ref"), commit)
	a.respond(w, r, diff, err)
}

// validCommit checks a commit's name, or responds 422.
func validCommit(w http.ResponseWriter, name string, loc ...string) bool {
	const pattern = "^[0-9a-fA-F]{4,64}$"
	if regexp.MustCompile(pattern).MatchString(name) {
		return true
	}
	wire.WriteInvalid(w, []decode.Problem{{Type: "string_pattern_mismatch", Loc: loc,
		Msg:   "String should match pattern '" + pattern + "'",
		Input: decode.Truncate(name, 64), Ctx: map[string]any{"pattern": pattern}}})
	return false
}

// HandleCommits handles GET /api/git/commits?path=&limit=.
func (a *API) HandleCommits(w http.ResponseWriter, r *http.Request) {
	var problems decode.Problems
	limit := decode.Query{Values: r.URL.Query(), Problems: &problems}.Integer("limit", 50, 0, 200)
	if problems.Err() != nil {
		wire.WriteInvalid(w, problems.List)
		return
	}
	ctx, path, done, ok := a.begin(w, r)
	if !ok {
		return
	}
	defer done()
	page, err := commitLog(ctx, path, int(limit))
	a.respond(w, r, page, err)
}

// HandleCommitChanges handles GET /api/git/commits/{sha}/changes?path=.
func (a *API) HandleCommitChanges(w http.ResponseWriter, r *http.Request) {
	sha := r.PathValue("sha")
	if !validCommit(w, sha, "path", "sha") {
		return
	}
	ctx, path, done, ok := a.begin(w, r)
	if !ok {
		return
	}
	defer done()
	list, err := commitChanges(ctx, path, sha)
	a.respond(w, r, list, err)
}
