package main

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// script runs before the page's own: this node is the one backend, with a cookie, nothing is
// reported to anybody, the first-run questions, which are about backends, are answered, and a
// resume says when a person last did something.
//
//go:embed script.js
var script string

// Where the files of the other packages are on a node. Monaco's version is in its path.
const (
	fontsPath  = "fonts/"
	monacoPath = "monaco-0.55.1/vs"
	docsPath   = "swagger-ui-5.35.0"
)

// change is what is changed in one file of the build.
type change struct {
	// file is its path in the build, sum the SHA-256 of it as it was published, in hex. Another version
	// of the package has other files, and its changes are to be looked at.
	file, sum string
	// edits are made in turn; the text of each stands in the file once.
	edits []edit
}

type edit struct{ old, with string }

// The fonts that the build imports, and the style sheets of the packages that have them.
const (
	outfitCSS = `@import "https://fonts.googleapis` + `.com/css2?family=Outfit:wght@100..900&display=swap";`
	plexCSS   = `@import "https://fonts.googleapis` + `.com/css2?family=IBM+Plex+Mono:ital,wght@0,100;0,200;0,300;` +
		`0,400;0,500;0,600;0,700;1,100;1,200;1,300;1,400;1,500;1,600;1,700&family=Outfit:wght@100..900&display=swap";`
	plexWeights = "100 200 300 400 500 600 700"
)

// changes are all changes of the published build. modules is the folder of the packages.
func changes(modules string) ([]change, error) {
	outfit, err := fontFaces(modules, "@fontsource-variable/outfit", "wght.css")
	if err != nil {
		return nil, err
	}
	var sheets []string
	for weight := range strings.FieldsSeq(plexWeights) {
		sheets = append(sheets, weight+".css", weight+"-italic.css")
	}
	plex, err := fontFaces(modules, "@fontsource/ibm-plex-mono", sheets...)
	if err != nil {
		return nil, err
	}
	return []change{
		indexChange("ec84ef597aef721969c68bd1bd92079558f1bf19a5ea1c2e2e34641ebcfa3bbf"),
		{
			file:  "assets/root-sEWn3ha1.css",
			sum:   "8797da2411ab50c89e42f5f4b3133bf5e95ad7407d10cd5d176ca3633f5a3409",
			edits: []edit{{outfitCSS, ""}, {plexCSS, plex + outfit}},
		},
		{
			file:  "assets/vendor~commits-tab-BaO2Ce3e.js",
			sum:   "d6f261d16c23206fd1211550bdc5b33cf92e4fc0b5ea3bbe7566f0f1864ac592",
			edits: []edit{{"https://cdn.jsdelivr" + ".net/npm/monaco-editor@0.55.1/min/vs", "/" + monacoPath}},
		},
	}, nil
}

// indexChange has the script begin the first page, whose sum is that of the published one.
func indexChange(sum string) change {
	return change{file: "index.html", sum: sum, edits: []edit{
		{"<head>", "<head><script>" + strings.TrimSpace(script) + "</script>"},
	}}
}

// fontFaces are the rules of a font's style sheets, for its files on a node.
func fontFaces(modules, pkg string, sheets ...string) (string, error) {
	rules := regexp.MustCompile(`(?s)@font-face \{.*?\}`)
	file := regexp.MustCompile(`url\(\./files/([a-z0-9-]+\.woff2)\)`)
	older := regexp.MustCompile(`, url\([^)]*\.woff\) format\('woff'\)`)
	var all strings.Builder
	for _, sheet := range sheets {
		b, err := os.ReadFile(filepath.Join(modules, filepath.FromSlash(pkg), sheet))
		if err != nil {
			return "", err
		}
		for _, rule := range rules.FindAllString(string(b), -1) {
			// The build knows the font by its bare name.
			rule = strings.Replace(older.ReplaceAllString(rule, ""), " Variable'", "'", 1)
			if !file.MatchString(rule) {
				return "", fmt.Errorf("%s of %s has a rule without a file: %s", sheet, pkg, rule)
			}
			all.WriteString(strings.Join(strings.Fields(file.ReplaceAllString(rule, "url(/"+fontsPath+"$1)")), " "))
		}
	}
	return all.String(), nil
}

// source is a folder of a package and where it goes.
type source struct {
	pkg, from, to string
	// immutable files have the package's version in their paths.
	immutable bool
	// without is a file that is left out, "" for none.
	without string
	// only are the endings of the files that are taken, nil for all.
	only []string
}

// pageSources are what a page is made of, beside the changes.
func pageSources() []source {
	return []source{
		// The worker belongs to the mocks of upstream's tests.
		{pkg: canvas, from: "build", without: "mockServiceWorker.js"},
		{pkg: "monaco-editor", from: "min/vs", to: monacoPath, immutable: true},
		{pkg: "@fontsource-variable/outfit", from: "files", to: fontsPath, only: []string{".woff2"}},
		{pkg: "@fontsource/ibm-plex-mono", from: "files", to: fontsPath, only: []string{".woff2"}},
		{pkg: "swagger-ui-dist", to: docsPath, only: []string{"swagger-ui.css", "swagger-ui-bundle.js"}, immutable: true},
	}
}

// docs are our own files: the page that shows the API's description, and its script.
//
//go:embed docs.html docs.js
var docs embed.FS

// canvas is the package of the build.
const canvas = "@openhands/agent-canvas"

// elsewhere are places that no file of a page may name: the changes lead away from them.
func elsewhere() []string {
	return []string{"fonts.googleapis" + ".com/css", "cdn.jsdelivr" + ".net/npm/monaco-editor"}
}

// edited makes the edits of a change.
func (c change) edited(body []byte) ([]byte, error) {
	var err error
	for _, e := range c.edits {
		if body, err = once(body, e.old, e.with); err != nil {
			return nil, fmt.Errorf("%s: %w", c.file, err)
		}
	}
	return body, nil
}
