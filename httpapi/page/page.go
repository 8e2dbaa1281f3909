package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// ManifestName is the file of a page's folder that lists what is in it.
	ManifestName = "manifest.json"
	// FilesDir is the folder beside it that has the files.
	FilesDir = "files"
	// PackedSuffix ends the name of a file that lies there compressed.
	PackedSuffix = ".gz"
	// Index is the file that the page begins with.
	Index = "index.html"
	// Docs is the page that shows the API's description.
	Docs = "docs.html"
)

// Manifest lists what a page is made of.
type Manifest struct {
	Packages []Package `json:"packages"`
	// Scripts are the hashes of the scripts inside Index, as a policy names them.
	Scripts []string `json:"scripts"`
	// Routes are the paths that the page itself knows: "/conversations/:conversationId".
	Routes []string `json:"routes"`
	// Files are the files by their paths, without the leading slash.
	Files map[string]File `json:"files"`
}

// Package is an npm package that the page is made of.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Licence string `json:"licence"`
}

// File is one file of a page.
type File struct {
	// Type is the Content-Type.
	Type string `json:"type"`
	Size int64  `json:"size"`
	// Sum is the SHA-256 of its Size bytes, in hex.
	Sum string `json:"sha256"`
	// Packed is the size of the compressed file that lies in place of this one; 0 for none.
	Packed int64 `json:"packed,omitempty"`
	// Immutable files never change under their names.
	Immutable bool `json:"immutable,omitempty"`
}

// Page is the web page of a node. It does not change.
type Page struct {
	dir      string
	manifest Manifest
	// routes are the manifest's, in parts; scripts are its hashes as a policy has them.
	routes  [][]string
	scripts string
	missing bool
}

// Open reads the page in a folder. It fails if a file of the manifest is missing or has another
// size.
func Open(dir string) (*Page, error) {
	b, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if err != nil {
		return nil, fmt.Errorf("opening the web page: %w", err)
	}
	p := &Page{dir: filepath.Join(dir, FilesDir)}
	if err := json.Unmarshal(b, &p.manifest); err != nil {
		return nil, fmt.Errorf("opening the web page: %s: %w", filepath.Join(dir, ManifestName), err)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("opening the web page in %s: %w", dir, err)
	}
	for _, route := range p.manifest.Routes {
		p.routes = append(p.routes, parts(route))
	}
	for _, hash := range p.manifest.Scripts {
		p.scripts += " '" + hash + "'"
	}
	return p, nil
}

// Missing returns a page that says that there is none, and how to get it.
func Missing() *Page { return &Page{missing: true, routes: [][]string{{}}} }

// IsMissing reports whether there is no page but one that says so.
func (p *Page) IsMissing() bool { return p.missing }

// Manifest returns what the page is made of.
func (p *Page) Manifest() Manifest { return p.manifest }

func (p *Page) check() error {
	if _, there := p.manifest.Files[Index]; !there {
		return errors.New("the manifest has no " + Index)
	}
	for name, f := range p.manifest.Files {
		if !filepath.IsLocal(name) || strings.Contains(name, `\`) {
			return fmt.Errorf("the manifest names %q, which is no file of the page", name)
		}
		path, size := p.place(name, f)
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return err
		case !info.Mode().IsRegular() || info.Size() != size:
			return fmt.Errorf("%s has %d bytes, the manifest %d", path, info.Size(), size)
		}
	}
	return nil
}

// place returns where a file lies, and its size there.
func (p *Page) place(name string, f File) (path string, size int64) {
	path = filepath.Join(p.dir, filepath.FromSlash(name))
	if f.Packed > 0 {
		return path + PackedSuffix, f.Packed
	}
	return path, f.Size
}

// Find returns the file for a path: one with that name, or Index for a path that the page knows.
func (p *Page) Find(path string) (name string, found bool) {
	name, absolute := strings.CutPrefix(path, "/")
	if !absolute {
		return "", false
	}
	if _, is := p.manifest.Files[name]; is {
		return name, true
	}
	want := parts(path)
	for _, route := range p.routes {
		if matches(route, want) {
			return Index, true
		}
	}
	return "", false
}

// parts are the parts of a path between its slashes. One slash at the end does not count.
func parts(path string) []string {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return []string{}
	}
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
	}
	return strings.Split(path, "/")
}

// matches reports whether a path is one of a route's. A part with a colon stands for any, and a
// star at the end for any that follow.
func matches(route, path []string) bool {
	if end := len(route) - 1; end >= 0 && route[end] == "*" {
		route = route[:end]
		path = path[:min(end, len(path))]
	}
	if len(route) != len(path) {
		return false
	}
	for i, part := range route {
		if path[i] == "" || !strings.HasPrefix(part, ":") && part != path[i] {
			return false
		}
	}
	return true
}
