package check

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

var (
	// mapped matches a file or folder in a file map of a DESIGN.md; *, <noun> and <verb> match
	// any part of a name.
	mapped = regexp.MustCompile("`([a-z<][\\w./<>*-]*(?:\\.go|/))`")
	// walkPath matches a file in a walk of CONTRIBUTING.md, with the same wildcards.
	walkPath = regexp.MustCompile("`([a-z][\\w./<>*-]*/[\\w.<>*-]+\\.[a-z]+)`")
	// wildcards makes a pattern of path.Match from a name in a document.
	wildcards = strings.NewReplacer("<noun>", "*", "<verb>", "*")
	// treeFolder matches a folder in the tree of the root's DESIGN.md.
	treeFolder = regexp.MustCompile(`([a-z][\w-]*)/(?:[ :]|$)`)
)

// Maps reports files and folders in a DESIGN.md that do not exist. A name is relative to the
// root, or the end of a path below the document's folder.
func Maps(t *Texts) []string {
	var found []string
	for _, f := range t.Files {
		if path.Base(f.Path) != "DESIGN.md" {
			continue
		}
		for _, m := range mapped.FindAllStringSubmatch(f.Body, -1) {
			if !t.hasBelow(f.Dir(), strings.TrimSuffix(m[1], "/")) {
				found = append(found, fmt.Sprintf("%s: %s is not in the tree", f.Path, m[1]))
			}
		}
		if f.Dir() == "." {
			found = append(found, t.treeOf(f)...)
		}
	}
	return found
}

// Walks reports files in CONTRIBUTING.md that do not exist.
func Walks(t *Texts) []string {
	var found []string
	for _, f := range t.Files {
		if f.Path != "CONTRIBUTING.md" {
			continue
		}
		for _, m := range walkPath.FindAllStringSubmatch(f.Body, -1) {
			if !t.hasMatch(m[1]) {
				found = append(found, fmt.Sprintf("%s: %s is not in the tree", f.Path, m[1]))
			}
		}
	}
	return found
}

// treeOf reports missing folders in a document's tree.
func (t *Texts) treeOf(f *Text) []string {
	var found []string
	_, tree, _ := strings.Cut(f.Body, "\n## 4. The tree\n")
	_, tree, _ = strings.Cut(tree, "```\n")
	tree, _, _ = strings.Cut(tree, "```\n")
	top := ""
	for line := range strings.Lines(tree) {
		line = strings.TrimSuffix(line, "\n")
		for _, m := range treeFolder.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(line, m[0]) {
				top = m[1]
			}
			if !t.names[top] || m[1] != top && !t.hasBelow(top, m[1]) {
				found = append(found, fmt.Sprintf("%s: the tree has %s/ in %s/", f.Path, m[1], top))
			}
		}
	}
	return found
}

// hasBelow reports whether a pattern matches a path of the tree, or the end of one below a
// folder.
func (t *Texts) hasBelow(folder, pattern string) bool {
	if t.hasMatch(pattern) {
		return true
	}
	pattern = wildcards.Replace(pattern)
	segments := strings.Count(pattern, "/") + 1
	for name := range t.names {
		parts := strings.Split(name, "/")
		if folder != "." && !strings.HasPrefix(name, folder+"/") || len(parts) < segments {
			continue
		}
		end := strings.Join(parts[len(parts)-segments:], "/")
		if is, err := path.Match(pattern, end); err == nil && is {
			return true
		}
	}
	return false
}

// hasMatch reports whether a pattern matches a path of the tree.
func (t *Texts) hasMatch(pattern string) bool {
	pattern = wildcards.Replace(pattern)
	for name := range t.names {
		if is, err := path.Match(pattern, name); err == nil && is {
			return true
		}
	}
	return false
}
