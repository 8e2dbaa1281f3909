package files

import (
	"cmp"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/scheduler/agent"
)

const (
	maxFavorites = 50
	maxSubdirs   = 10_000 // of one directory
)

// Subdirectory is a directory in a listing.
type Subdirectory struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// labelled is a directory of the file browser.
type labelled struct {
	Label string `json:"label"`
	Path  string `json:"path"`
}

// subdirectories lists the directories in dir by their names in any case; symbolic links are none.
func subdirectories(dir string, hidden bool) ([]Subdirectory, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	list := []Subdirectory{}
	for _, e := range entries {
		if e.IsDir() && (hidden || !strings.HasPrefix(e.Name(), ".")) && len(list) < maxSubdirs {
			list = append(list, Subdirectory{e.Name(), filepath.Join(dir, e.Name())})
		}
	}
	slices.SortFunc(list, func(a, b Subdirectory) int {
		return cmp.Or(strings.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}

// HandleHome handles GET /api/file/home.
func (a *API) HandleHome(w http.ResponseWriter, r *http.Request) {
	var problems decode.Problems
	hidden := decode.Query{Values: r.URL.Query(), Problems: &problems}.Boolean("include_hidden")
	if problems.Err() != nil {
		wire.WriteInvalid(w, problems.List)
		return
	}
	dir, favorites := cmp.Or(a.cfg.Home(), "/"), []labelled{}
	list, err := subdirectories(dir, hidden)
	if err != nil {
		list = nil // a home that can't be read has no favourites
	}
	for _, d := range list[:min(len(list), maxFavorites)] {
		favorites = append(favorites, labelled{d.Name, d.Path})
	}
	wire.WriteJSON(w, http.StatusOK, map[string]any{
		"home": dir, "favorites": favorites, "locations": []labelled{{"/", "/"}},
	})
}

// directoryAt reads the path parameter, which must name a directory, or responds with the error.
func (a *API) directoryAt(w http.ResponseWriter, r *http.Request) (string, bool) {
	path, ok := absPath(w, r)
	if !ok {
		return "", false
	}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		wire.WriteDetail(w, http.StatusNotFound, "Directory not found")
	case err != nil:
		a.failed(w, r, err)
	case !st.IsDir():
		wire.WriteDetail(w, http.StatusBadRequest, "Path is not a directory")
	default:
		return path, true
	}
	return "", false
}

// HandleSearchSubdirs handles GET /api/file/search_subdirs?path=.
func (a *API) HandleSearchSubdirs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var problems decode.Problems
	hidden := decode.Query{Values: q, Problems: &problems}.Boolean("include_hidden")
	if problems.Err() != nil {
		wire.WriteInvalid(w, problems.List)
		return
	}
	limit, ok := wire.ReadLimit(w, q)
	if !ok {
		return
	}
	path, ok := a.directoryAt(w, r)
	if !ok {
		return
	}
	list, err := subdirectories(path, hidden)
	if err != nil {
		a.failed(w, r, err)
		return
	}
	if token := q.Get("page_id"); token != "" {
		// An unknown token means the first page.
		list = list[max(0, slices.IndexFunc(list, func(d Subdirectory) bool { return strings.ToLower(d.Name) == token })):]
	}
	out := agent.Page[Subdirectory]{Items: list[:min(limit, len(list))]}
	if limit < len(list) {
		next := strings.ToLower(list[limit].Name)
		out.NextPageID = &next
	}
	wire.WriteJSON(w, http.StatusOK, out)
}
