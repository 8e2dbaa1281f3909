package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"bivouac.dev/bivouac/httpapi/page"
)

// licencesName is the file of a page's folder with the licences of its packages.
const licencesName = "LICENSES.txt"

// types are the content types of what a page may have: a file of another kind is looked at first.
var types = map[string]string{
	".css": "text/css; charset=utf-8", ".gif": "image/gif", ".html": "text/html; charset=utf-8",
	".ico": "image/x-icon", ".jpg": "image/jpeg", ".js": "text/javascript; charset=utf-8",
	".json": "application/json", ".md": "text/markdown; charset=utf-8", ".mp3": "audio/mpeg", ".png": "image/png",
	".svg": "image/svg+xml", ".ttf": "font/ttf", ".txt": "text/plain; charset=utf-8", ".wasm": "application/wasm",
	".wav": "audio/wav", ".webmanifest": "application/manifest+json", ".webp": "image/webp", ".woff": "font/woff",
	".woff2": "font/woff2", ".xml": "application/xml",
}

// hashed matches the names that the build gives to files by their content.
var hashed = regexp.MustCompile(`^assets/.*-[A-Za-z0-9_-]{8}\.[a-z0-9]+$`)

// inline matches a script in a page.
var inline = regexp.MustCompile(`(?s)<script([^>]*)>(.*?)</script>`)

// assembly is a page that is being made.
type assembly struct {
	modules, out string
	manifest     page.Manifest
	// left are the changes that no file had yet.
	left     map[string]change
	licences bytes.Buffer
}

// assemble makes a page in the empty folder out.
func assemble(packages, out string, declared []change) error {
	a := assembly{
		modules: filepath.Join(packages, "node_modules"), out: out, left: map[string]change{},
		manifest: page.Manifest{Files: map[string]page.File{}},
	}
	for _, c := range declared {
		a.left[c.file] = c
	}
	for _, from := range pageSources() {
		if err := a.take(from); err != nil {
			return fmt.Errorf("%s: %w", from.pkg, err)
		}
	}
	for _, name := range []string{page.Docs, "docs.js"} {
		body, err := docs.ReadFile(name)
		if err == nil {
			err = a.add(source{}, name, body)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for file := range a.left {
		return fmt.Errorf("a change is declared of %s, which the build does not have", file)
	}
	if len(a.manifest.Routes) == 0 || len(a.manifest.Scripts) == 0 {
		return errors.New("the build has no list of routes, or its first page no script")
	}
	if err := os.WriteFile(filepath.Join(out, licencesName), a.licences.Bytes(), 0o644); err != nil {
		return err
	}
	b, err := json.MarshalIndent(a.manifest, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, page.ManifestName), append(b, '\n'), 0o644)
}

// take copies what a page has of a package.
func (a *assembly) take(from source) error {
	if err := a.describe(from.pkg); err != nil {
		return err
	}
	root := filepath.Join(a.modules, filepath.FromSlash(from.pkg), filepath.FromSlash(from.from))
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		ends := func(with string) bool { return strings.HasSuffix(name, with) }
		if name == from.without || from.only != nil && !slices.ContainsFunc(from.only, ends) {
			return nil
		}
		body, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		return a.add(from, name, body)
	})
}

// describe notes a package and its licence.
func (a *assembly) describe(name string) error {
	dir := filepath.Join(a.modules, filepath.FromSlash(name))
	b, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return err
	}
	var pkg struct{ Version, License string }
	if err := json.Unmarshal(b, &pkg); err != nil {
		return err
	}
	a.manifest.Packages = append(a.manifest.Packages,
		page.Package{Name: name, Version: pkg.Version, Licence: pkg.License})
	line := strings.Repeat("=", 80)
	fmt.Fprintf(&a.licences, "%s\n%s %s (%s)\n%s\n\n", line, name, pkg.Version, pkg.License, line)
	texts, err := licences(dir)
	if err != nil {
		return err
	}
	for _, text := range texts {
		a.licences.Write(bytes.TrimSpace(text))
		a.licences.WriteString("\n\n")
	}
	return nil
}

// licences are the texts of the licences in a package's folder.
func licences(dir string) ([][]byte, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	is := regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|thirdpartynotices)([._-].*)?$`)
	var texts [][]byte
	for _, e := range entries {
		if e.IsDir() || !is.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	if len(texts) == 0 {
		return nil, errors.New("no licence in " + dir)
	}
	return texts, nil
}

// add writes a file of the page.
func (a *assembly) add(from source, name string, body []byte) error {
	at := path.Join(from.to, name)
	kind, known := types[path.Ext(at)]
	if !known {
		return fmt.Errorf("%s: a file of this kind has no content type here", name)
	}
	f := page.File{Type: kind, Immutable: from.immutable || from.pkg == canvas && hashed.MatchString(name)}
	if c, declared := a.left[at]; declared && from.pkg == canvas {
		delete(a.left, at)
		if sum := sumOf(body); sum != c.sum {
			return fmt.Errorf("%s is not the file whose changes are declared: its SHA-256 is %s, not %s", name, sum, c.sum)
		}
		var err error
		if body, err = c.edited(body); err != nil {
			return err
		}
		f.Immutable = false // its name is that of another content
	}
	for _, place := range elsewhere() {
		if bytes.Contains(body, []byte(place)) {
			return fmt.Errorf("%s names %s, and no change leads away from it", name, place)
		}
	}
	if from.pkg == canvas {
		if err := a.read(name, body); err != nil {
			return err
		}
	}
	f.Size, f.Sum = int64(len(body)), sumOf(body)
	packed, err := pack(body)
	if err != nil {
		return err
	}
	to := filepath.Join(a.out, page.FilesDir, filepath.FromSlash(at))
	if len(packed) < len(body)*9/10 {
		f.Packed, body, to = int64(len(packed)), packed, to+page.PackedSuffix
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	a.manifest.Files[at] = f
	return os.WriteFile(to, body, 0o644)
}

// read learns of a file of the build what a node needs to know: its routes, its scripts.
func (a *assembly) read(name string, body []byte) (err error) {
	switch {
	case browserManifestName.MatchString(name):
		a.manifest.Routes, err = routesOf(body)
	case name == page.Index:
		for _, m := range inline.FindAllSubmatch(body, -1) {
			if !bytes.Contains(m[1], []byte("src=")) {
				sum := sha256.Sum256(m[2])
				a.manifest.Scripts = append(a.manifest.Scripts, "sha256-"+base64.StdEncoding.EncodeToString(sum[:]))
			}
		}
	}
	return err
}

func sumOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// pack compresses a file, without a time or a name, so that the same file gives the same bytes.
func pack(body []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}
