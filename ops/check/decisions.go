package check

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

const decisionsDir = "ops/decisions"

var (
	decisionFile  = regexp.MustCompile(`^(\d{4})-[a-z0-9-]+\.md$`)
	decisionTitle = regexp.MustCompile(`^# (\d{4}): (\S.*)\n\n\d{4}-\d{2}-\d{2}`)
)

// decisionParts are the headings of every decision, in order.
var decisionParts = []string{"Context", "Decision", "Consequences"}

// Decisions reports decisions in another form, gaps in their numbers, and an index that differs
// from their titles. A row "| NUMBER | part of …" of the index says where a number that is gone went.
func Decisions(t *Texts) []string {
	var found []string
	var rows strings.Builder
	next := 1
	for _, f := range sortedIn(t, decisionsDir) {
		name := path.Base(f.Path)
		if name == "README.md" {
			continue
		}
		file, title := decisionFile.FindStringSubmatch(name), decisionTitle.FindStringSubmatch(f.Body)
		if file == nil || title == nil || file[1] != title[1] {
			found = append(found, f.Path+`: begins with "# NUMBER: TITLE" and a date, and has the number in its name`)
			continue
		}
		for row := t.folded(next); row != ""; row = t.folded(next) {
			rows.WriteString(row)
			next++
		}
		if file[1] != fmt.Sprintf("%04d", next) {
			found = append(found, fmt.Sprintf("%s: the next number is %04d", f.Path, next))
		}
		next++
		var parts []string
		for line := range strings.Lines(f.Body) {
			if part, is := strings.CutPrefix(line, "## "); is {
				parts = append(parts, strings.TrimSpace(part))
			}
		}
		if !slices.Equal(parts, decisionParts) {
			found = append(found, fmt.Sprintf("%s: has the parts %q, want %q", f.Path, parts, decisionParts))
		}
		fmt.Fprintf(&rows, "| [%s](%s) | %s |\n", title[1], name, title[2])
	}
	for _, f := range t.Files {
		if f.Path == decisionsDir+"/README.md" && !strings.Contains(f.Body, rows.String()) {
			found = append(found, f.Path+": the table is not this:\n"+rows.String())
		}
	}
	return found
}

// folded returns the index's row of a decision that became part of another, "" if there is none.
func (t *Texts) folded(number int) string {
	for _, f := range t.Files {
		if f.Path != decisionsDir+"/README.md" {
			continue
		}
		for line := range strings.Lines(f.Body) {
			if strings.HasPrefix(line, fmt.Sprintf("| %04d | part of ", number)) {
				return line
			}
		}
	}
	return ""
}

// sortedIn returns a folder's texts, sorted by path.
func sortedIn(t *Texts, dir string) []*Text {
	var in []*Text
	for _, f := range t.Files {
		if f.Dir() == dir {
			in = append(in, f)
		}
	}
	slices.SortFunc(in, func(a, b *Text) int { return strings.Compare(a.Path, b.Path) })
	return in
}
