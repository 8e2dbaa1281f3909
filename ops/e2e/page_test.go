package e2e

import (
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/httpapi/page"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// anyID matches an id in a path.
var anyID = regexp.MustCompile(`[0-9a-f-]{36}|[0-9a-f]{32}|[0-9A-Za-z]{22}`)

// pageRefused is what the build tries and the policy refuses: "DIRECTIVE HOST". The build of
// another version may try more, which is to be looked at before it stands here.
var pageRefused = []string{
	// Logos of MCP servers.
	"img-src app.tryordinal.com", "img-src cdn.jsdelivr.net", "img-src cdn.simpleicons.org",
}

// pageAbsent are the paths that the build asks for and that answer 404, without harm to the page.
var pageAbsent = []string{
	"GET /api/automation/health", "GET /api/automation/sdk-version", // there are no automations
}

func eventuallyShows(t *testing.T, what string, check func() error) {
	t.Helper()
	testcluster.Eventually(t, "the page shows "+what, check)
}

// pageFolder is the page that `make page` made.
func pageFolder(t *testing.T) string {
	t.Helper()
	root, err := local.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "bin", "page")
	_, err = os.Stat(filepath.Join(dir, page.ManifestName))
	testcluster.Need(t, "page", err == nil)
	return dir
}

// startedPage starts `bivouac dev` with the page beside the program.
func startedPage(t *testing.T) (dev *program, home string, info devInfo) {
	t.Helper()
	made := pageFolder(t)
	home = t.TempDir()
	program := build(t, filepath.Join(home, "bin", "bivouac"), "./cmd/bivouac")
	if err := os.Symlink(made, filepath.Join(home, "bin", "page")); err != nil {
		t.Fatal(err)
	}
	base, _ := freePorts(t, "")
	dev = startDev(t, home, program, base)
	raw, err := os.ReadFile(filepath.Join(home, ".bivouac", "dev.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		t.Fatal(err)
	}
	return dev, home, info
}

// TestPage_AsksOnlyItsOwnNode: a person signs in on the web page of `bivouac dev` and opens each of
// its paths. No request leaves the node but for those that the policy refuses, no path shows nothing,
// and what answers 404 is known.
func TestPage_AsksOnlyItsOwnNode(t *testing.T) {
	browser := startChromium(t)
	dev, _, info := startedPage(t)
	w := browser.watch(t, info.Nodes[0].HTTP)
	w.signIn(t, info.APIKey)
	refused := map[string]bool{}
	for _, path := range pagePaths(t) {
		text := w.show(t, path)
		t.Logf("%s: …%q", path, text[max(0, len(text)-160):])
		for _, one := range w.refused(t) {
			refused[violation(one)] = true
		}
	}
	w.show(t, "/docs")
	w.does(t, "a tag of the description opens", `(() => {
		const tag = document.getElementById("operations-tag-settings")
		if (tag) tag.click()
		return !!tag
	})()`)
	w.shows(t, "Store the caller's settings, all of them.")
	for _, one := range w.refused(t) {
		t.Errorf("the page of the description: refused %s", one)
	}
	w.show(t, "/")
	var changes int
	if err := w.eval(monacoDiff, &changes); err != nil || changes != 1 {
		t.Errorf("the editor of diffs, with its worker: %d changes, %v, refused %q", changes, err, w.refused(t))
	}
	judgePage(t, w, slices.Sorted(maps.Keys(refused)))
	// The same looking finds a request that does leave.
	const elsewhere = "https://elsewhere.invalid/"
	if err := w.eval(`fetch("`+elsewhere+`").then(() => 1, () => 0)`, &changes); err != nil || changes != 0 ||
		!slices.Contains(w.refused(t), "connect-src "+elsewhere) {
		t.Errorf("a request elsewhere: %d, %v, refused %q", changes, err, w.refused(t))
	}
	dev.interrupt(t)
}

// monacoDiff loads Monaco as the build does, and has its worker compare two texts.
const monacoDiff = `new Promise((done, fail) => {
	const vs = "/monaco-0.55.1/vs", loader = document.createElement("script")
	loader.src = vs + "/loader.js"
	loader.onerror = () => fail(new Error("no loader"))
	loader.onload = () => {
		require.config({ paths: { vs } })
		require(["vs/editor/editor.main"], () => {
			const at = document.createElement("div")
			at.style.height = "200px"
			document.body.append(at)
			const editor = monaco.editor.createDiffEditor(at)
			editor.onDidUpdateDiff(() => done(editor.getLineChanges().length))
			const [original, modified] = ["let a = 1", "let a = 2"].map((text) => monaco.editor.createModel(text, "typescript"))
			editor.setModel({ original, modified })
		}, fail)
	}
	document.body.append(loader)
})`

// pagePaths are the paths that the build itself knows, without those of one conversation.
func pagePaths(t *testing.T) []string {
	t.Helper()
	p, err := page.Open(pageFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(p.Manifest().Routes, func(r string) bool { return strings.Contains(r, ":") })
}

// violation is what the policy refused without what differs from time to time.
func violation(one string) string {
	directive, to, _ := strings.Cut(one, " ")
	if u, err := url.Parse(to); err == nil && u.Host != "" {
		to = u.Hostname()
	}
	return directive + " " + to
}

// judgePage fails for what is in neither list, and for what left the node.
func judgePage(t *testing.T, w *webPage, refused []string) {
	t.Helper()
	for _, one := range refused {
		if !slices.Contains(pageRefused, one) {
			t.Errorf("the policy refused %s, which is not in the list", one)
		}
	}
	for _, to := range values(w.left) {
		t.Errorf("a request left the page's origin: %s", to)
	}
	for answer := range w.answers {
		status, asked, _ := strings.Cut(answer, " ")
		if status[0] == '5' || status == "404" && !slices.Contains(pageAbsent, asked) {
			t.Errorf("%s answered %s, which is not in the list", asked, status)
		}
	}
	for _, mistake := range w.mistakes {
		t.Errorf("the page's code threw %.300s", mistake)
	}
	t.Logf("refused by the policy: %q", refused)
}
