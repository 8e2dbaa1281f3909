package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/httpapi/page"
)

// Paths in the page's scripts, which name them whole or as a template.
var (
	pathInScript = regexp.MustCompile("[\"'`](/(?:api|oauth)/[^\"'`\\s?\\\\]*)")
	partOfPath   = regexp.MustCompile(`\$\{[^/]*|:\w+|\{\w+\}`)
	anyParameter = regexp.MustCompile(`\{[^}]*\}`)
)

// TestPage_PathsAreKnown reads the paths of the API out of the published build. A node has each of them, or
// testdata/page_paths.txt says whose it is: a new one is to be looked at before it stands there.
func TestPage_PathsAreKnown(t *testing.T) {
	root, err := local.Root()
	if err != nil {
		t.Fatal(err)
	}
	var api struct{ Paths map[string]any }
	raw, err := os.ReadFile(filepath.Join(root, "httpapi", "openapi.json"))
	if err == nil {
		err = json.Unmarshal(raw, &api)
	}
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for path := range api.Paths {
		served[anyParameter.ReplaceAllString(path, "{}")] = true
	}
	known, err := os.ReadFile("testdata/page_paths.txt")
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for line := range strings.Lines(string(known)) {
		if path, _, is := strings.Cut(line, " "); is && path != "#" {
			left[path] = true
		}
	}
	for _, path := range pathsInScripts(t, pageFolder(t)) {
		switch {
		case left[path] && served[path]:
			t.Errorf("testdata/page_paths.txt has %s, which a node serves", path)
		case !left[path] && !served[path]:
			t.Errorf("the build knows %s, which no node serves and testdata/page_paths.txt does not name", path)
		}
		delete(left, path)
	}
	for path := range left {
		t.Errorf("testdata/page_paths.txt has %s, which the build does not know", path)
	}
}

// pathsInScripts are the paths of the API in the page's scripts, with {} for what is filled in.
func pathsInScripts(t *testing.T, folder string) []string {
	t.Helper()
	found := map[string]bool{}
	assets := filepath.Join(folder, page.FilesDir, "assets")
	err := filepath.WalkDir(assets, func(at string, e fs.DirEntry, err error) error {
		if name := strings.TrimSuffix(at, ".gz"); err != nil || e.IsDir() || filepath.Ext(name) != ".js" {
			return err
		}
		text, err := os.ReadFile(at)
		if err == nil && strings.HasSuffix(at, ".gz") {
			var unpacked *gzip.Reader
			var plain bytes.Buffer
			if unpacked, err = gzip.NewReader(bytes.NewReader(text)); err == nil {
				_, err = plain.ReadFrom(unpacked)
				text = plain.Bytes()
			}
		}
		for _, m := range pathInScript.FindAllSubmatch(text, -1) {
			path := strings.TrimSuffix(partOfPath.ReplaceAllString(string(m[1]), "{}"), "/")
			if query := strings.TrimSuffix(path, "{}"); !strings.HasSuffix(query, "/") {
				path = query
			}
			found[path] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 100 {
		t.Fatalf("only %d paths in the scripts", len(found))
	}
	return slices.Sorted(maps.Keys(found))
}
