package main

import (
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/httpapi/page"
)

const testIndex = `<!DOCTYPE html><html><head><meta charset="utf-8"/></head><body><script>let a = 1;</script>` +
	`<script type="module" async="">import "/assets/manifest-0a1b2c3d.js";</script></body></html>`

const testRoutes = `window.__reactRouterManifest={"entry":{"module":"/assets/e.js"},"routes":{` +
	`"root":{"id":"root","path":"","module":"/assets/r.js"},` +
	`"routes/layout":{"id":"routes/layout","parentId":"root"},` +
	`"routes/home":{"id":"routes/home","parentId":"routes/layout","index":true},` +
	`"routes/settings":{"id":"routes/settings","parentId":"routes/layout","path":"settings"},` +
	`"routes/llm":{"id":"routes/llm","parentId":"routes/settings","path":"llm"},` +
	`"routes/one":{"id":"routes/one","parentId":"routes/layout","path":"conversations/:id"}},"url":"/x"};`

// packages writes the packages that a page is made of, with the given files of the build beside
// those of every one.
func packages(t *testing.T, build map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"@openhands/agent-canvas/package.json":                      `{"version":"1.2.3","license":"MIT"}`,
		"@openhands/agent-canvas/LICENSE":                           "the licence of the build",
		"@openhands/agent-canvas/build/index.html":                  testIndex,
		"@openhands/agent-canvas/build/mockServiceWorker.js":        "mocks",
		"@openhands/agent-canvas/build/assets/manifest-0a1b2c3d.js": testRoutes,
		"@openhands/agent-canvas/build/assets/long-0a1b2c3d.js":     strings.Repeat("export default 1;\n", 50),
		"monaco-editor/package.json":                                `{"version":"0.55.1","license":"MIT"}`,
		"monaco-editor/LICENSE":                                     "the licence of Monaco",
		"monaco-editor/min/vs/loader.js":                            "define();",
		"@fontsource-variable/outfit/package.json":                  `{"version":"5.2.8","license":"OFL-1.1"}`,
		"@fontsource-variable/outfit/LICENSE":                       "the licence of the font",
		"@fontsource-variable/outfit/files/outfit-latin.woff2":      "font",
		"@fontsource/ibm-plex-mono/package.json":                    `{"version":"5.2.7","license":"OFL-1.1"}`,
		"@fontsource/ibm-plex-mono/LICENSE":                         "the licence of the other font",
		"@fontsource/ibm-plex-mono/files/plex.woff2":                "font",
		"@fontsource/ibm-plex-mono/files/plex.woff":                 "an older form",
		"swagger-ui-dist/package.json":                              `{"version":"5.35.0","license":"Apache-2.0"}`,
		"swagger-ui-dist/LICENSE":                                   "the licence of Swagger UI",
		"swagger-ui-dist/swagger-ui.css":                            ".swagger-ui {}",
		"swagger-ui-dist/swagger-ui-bundle.js":                      "SwaggerUIBundle = 1;",
		"swagger-ui-dist/swagger-ui-es-bundle.js":                   "another form",
	}
	for name, body := range build {
		files["@openhands/agent-canvas/build/"+name] = body
	}
	for name, body := range files {
		at := filepath.Join(dir, "node_modules", filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// declared is the change of the first page, for the build of the tests.
func declared() []change {
	return []change{indexChange(sumOf([]byte(testIndex)))}
}

func TestAssemble_MakesAPageThatANodeServes(t *testing.T) {
	out := t.TempDir()
	if err := assemble(packages(t, nil), out, declared()); err != nil {
		t.Fatal(err)
	}
	p, err := page.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	m := p.Manifest()
	want := []string{"/", "/conversations/:id", "/settings", "/settings/llm"}
	if !slices.Equal(m.Routes, want) {
		t.Errorf("routes %q, want %q", m.Routes, want)
	}
	if len(m.Scripts) != 3 || len(slices.Compact(slices.Sorted(slices.Values(m.Scripts)))) != 3 {
		t.Errorf("hashes of scripts: %q", m.Scripts)
	}
	for name, immutable := range map[string]bool{
		page.Index: false, "assets/long-0a1b2c3d.js": true, "monaco-0.55.1/vs/loader.js": true,
		"fonts/outfit-latin.woff2": false, "fonts/plex.woff2": false, page.Docs: false, "docs.js": false,
		docsPath + "/swagger-ui.css": true, docsPath + "/swagger-ui-bundle.js": true,
	} {
		if f, there := m.Files[name]; !there || f.Immutable != immutable || f.Type == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if _, there := m.Files["mockServiceWorker.js"]; there {
		t.Error("the worker of upstream's mocks is in the page")
	}
	if _, there := m.Files[docsPath+"/swagger-ui-es-bundle.js"]; there {
		t.Error("the page has a file that nothing asks for")
	}
	asked, err := docs.ReadFile(page.Docs)
	for _, m := range regexp.MustCompile(`(?:href|src)="/([^"]+)"`).FindAllSubmatch(asked, -1) {
		if _, there := p.Manifest().Files[string(m[1])]; !there {
			t.Errorf("%s names %s, which the page does not have", page.Docs, m[1])
		}
	}
	if err != nil {
		t.Error(err)
	}
	index := httptest.NewRecorder()
	err = p.Serve(index, httptest.NewRequest("GET", "/", nil), page.Index, url.URL{})
	if err != nil || !strings.Contains(index.Body.String(), "<head><script>(function") {
		t.Errorf("%v: %s", err, index.Body)
	}
	licences, err := os.ReadFile(filepath.Join(out, licencesName))
	for _, of := range []string{"the build", "Monaco", "the font"} {
		if err != nil || !strings.Contains(string(licences), "the licence of "+of) {
			t.Errorf("%v: no licence of %s", err, of)
		}
	}
}

// TestAssemble_AnotherBuildFails: a build whose changes nobody has looked at is no page.
func TestAssemble_AnotherBuildFails(t *testing.T) {
	const routes = "assets/manifest-0a1b2c3d.js"
	css := change{file: "assets/s-0a1b2c3d.css", sum: sumOf([]byte("a b")), edits: []edit{{"a", "c"}}}
	for name, test := range map[string]struct {
		build map[string]string
		more  []change
		want  string
	}{
		"another index": {map[string]string{"index.html": testIndex + "\n"}, nil, "not the file whose changes are declared"},
		"no such file":  {nil, []change{css}, "which the build does not have"},
		"the text twice": {
			map[string]string{css.file: "a a b"}, []change{{css.file, sumOf([]byte("a a b")), css.edits}}, "stands in it 2",
		},
		"fonts elsewhere":   {map[string]string{"a.css": "https://" + elsewhere()[0]}, nil, "no change leads away"},
		"an unknown kind":   {map[string]string{"a.exe": ""}, nil, "no content type"},
		"an unknown route":  {map[string]string{routes: strings.Replace(testRoutes, ":id", "*/x", 1)}, nil, "does not know"},
		"no list of routes": {map[string]string{routes: "export {}"}, nil, "does not begin with"},
	} {
		err := assemble(packages(t, test.build), t.TempDir(), append(declared(), test.more...))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestRun_MakesAPageOnceAndLeadsToIt(t *testing.T) {
	in, out, link := packages(t, nil), t.TempDir(), filepath.Join(t.TempDir(), "bin", "page")
	lock := filepath.Join(in, "package-lock.json")
	if err := os.WriteFile(lock, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The tests' build is not the one that the changes are declared of.
	if err := run(in, out, link); err == nil {
		t.Fatal("a page was made of another build")
	}
	if left, _ := os.ReadDir(out); len(left) > 0 {
		t.Errorf("%d entries are left of a page that failed", len(left))
	}
	key, err := keyOf(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(out, key), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := run(in, out, link); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(link); err != nil || to != filepath.Join(out, key) {
			t.Errorf("%v: the link leads to %s", err, to)
		}
	}
}
