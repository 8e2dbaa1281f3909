package check

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxTextSize bounds the checked files, in bytes. A larger file is data.
const maxTextSize = 1 << 20

// Text is one text file of the tree, in any language.
type Text struct {
	// Path is relative to the tree's root, with slashes.
	Path string
	Body string
	// flat is Body on one line without comment marks, so that a citation may span two lines of
	// a comment.
	flat string
}

// Texts are the tree's text files and the names of all files and folders.
type Texts struct {
	Files []*Text
	// names holds every path, including folders.
	names map[string]bool
	// headings maps a Markdown file's path to its headings.
	headings map[string][]string
}

// noTexts are the folders in .gitignore, and .git.
var noTexts = []string{".git", ".bivouac", ".stack", "bin", "dist", "rapid"}

// LoadTexts reads the text files below root. It skips what .gitignore lists (build output, a
// local stack's state), so that a clean checkout gives the tracked files.
func LoadTexts(root string) (*Texts, error) {
	t := &Texts{names: map[string]bool{".": true}, headings: map[string][]string{}}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains(noTexts, d.Name()) {
				return filepath.SkipDir
			}
			t.names[rel] = true
			return nil
		}
		if ext := path.Ext(rel); !d.Type().IsRegular() || ext == ".test" || ext == ".out" {
			return nil
		}
		t.names[rel] = true
		return t.add(p, rel)
	})
	if err != nil {
		return nil, fmt.Errorf("loading the texts of %s: %w", root, err)
	}
	return t, nil
}

// add reads a file if it is a text.
func (t *Texts) add(p, rel string) error {
	info, err := os.Stat(p)
	if err != nil {
		return err
	}
	if info.Size() > maxTextSize || path.Ext(rel) == ".svg" {
		return nil
	}
	b, err := os.ReadFile(p)
	if err != nil {
		return err
	}
	if bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b) {
		return nil
	}
	one := &Text{Path: rel, Body: string(b)}
	one.flat = flatten(one.Body)
	t.Files = append(t.Files, one)
	if one.IsMarkdown() {
		t.headings[rel] = headingsOf(one.Body)
	}
	return nil
}

// flatten joins the lines of a text by a space, without the marks of comments.
func flatten(body string) string {
	lines := strings.Split(body, "\n")
	for i, line := range lines {
		line = strings.Trim(line, " \t")
		for _, mark := range []string{"//", "#", "--", ">", "*"} {
			if rest, is := strings.CutPrefix(line, mark); is {
				if mark == "//" || mark == "#" {
					rest = strings.TrimLeft(rest, mark[:1])
				}
				line = strings.TrimLeft(rest, " \t")
				break
			}
		}
		lines[i] = line
	}
	return strings.Join(lines, " ")
}

// IsMarkdown reports whether the file is a Markdown document.
func (t *Text) IsMarkdown() bool { return path.Ext(t.Path) == ".md" }

// Dir returns the file's folder.
func (t *Text) Dir() string { return path.Dir(t.Path) }

var (
	headingLine = regexp.MustCompile(`^#{1,6}\s+(.+?)\s*#*$`)
	// headingNumber matches a heading's number, which is not part of a citation.
	headingNumber = regexp.MustCompile(`^\d+(?:\.\d+)*[.:]?\s+`)
	inlineLink    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// prose returns a document's lines; those in code blocks are empty.
func prose(body string) []string {
	lines := strings.Split(body, "\n")
	fenced := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence || fenced {
			lines[i] = ""
		}
		fenced = fenced != fence
	}
	return lines
}

// headingsOf returns the texts of a document's headings, in order.
func headingsOf(body string) []string {
	var out []string
	for _, line := range prose(body) {
		if m := headingLine.FindStringSubmatch(line); m != nil {
			out = append(out, strings.ReplaceAll(inlineLink.ReplaceAllString(m[1], "$1"), "`", ""))
		}
	}
	return out
}

// anchorsOf returns the anchors that a forge makes of headings. Repeated headings get a number.
func anchorsOf(headings []string) []string {
	seen := map[string]int{}
	out := make([]string, len(headings))
	for i, h := range headings {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, h)
		out[i] = anchor
		if n := seen[anchor]; n > 0 {
			out[i] = fmt.Sprintf("%s-%d", anchor, n)
		}
		seen[anchor]++
	}
	return out
}

// documents returns the Markdown files that a name in a file may mean: the one beside it, the
// one at that path, and every one whose path ends with it.
func (t *Texts) documents(from *Text, name string) []string {
	var out []string
	for p := range t.headings {
		if p == path.Join(from.Dir(), name) || p == name || strings.HasSuffix(p, "/"+name) {
			out = append(out, p)
		}
	}
	return out
}

// hasHeading reports whether one of the documents has the heading, with or without its number.
func (t *Texts) hasHeading(documents []string, heading string) bool {
	return slices.ContainsFunc(documents, func(p string) bool {
		return slices.ContainsFunc(t.headings[p], func(h string) bool {
			return h == heading || headingNumber.ReplaceAllString(h, "") == heading
		})
	})
}
