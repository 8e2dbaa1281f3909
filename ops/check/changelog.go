package check

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// changelogParts are the allowed headings in CHANGELOG.md.
var changelogParts = []string{"Before an upgrade", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

// Changelog reports entries of CHANGELOG.md that are longer than a line, that are duplicates,
// or that are below no heading. Duplicates come from merges that keep both sides.
func Changelog(t *Texts) []string {
	var found []string
	for _, f := range t.Files {
		if f.Path != "CHANGELOG.md" {
			continue
		}
		part, seen := "", map[string]bool{}
		for n, line := range strings.Split(f.Body, "\n") {
			object := func(what string) { found = append(found, fmt.Sprintf("%s:%d: %s", f.Path, n+1, what)) }
			if heading, is := strings.CutPrefix(line, "#"); is {
				part, seen = strings.TrimLeft(heading, "# "), map[string]bool{}
			}
			entry := strings.HasPrefix(line, "- ")
			switch {
			case utf8.RuneCountInString(line) > 100:
				object("longer than 100 columns; say what an operator or a user notices")
			case entry && !slices.Contains(changelogParts, part):
				object("an entry below no heading; put it below " + strings.Join(changelogParts, ", "))
			case entry && seen[line]:
				object("the same entry twice")
			case strings.HasPrefix(line, "  "):
				object("an entry is one line")
			}
			seen[line] = entry
		}
	}
	return found
}
