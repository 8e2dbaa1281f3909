package check

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The forms of citations.
var (
	// citation matches a document and one or several of its headings: API.md, "Paging".
	citation = regexp.MustCompile("([\\w./-]*\\w\\.md)`?, " +
		`("[^"]+"(?:(?:,| and|, and) "[^"]+")*)`)
	quoted = regexp.MustCompile(`"([^"]+)"`)
	// ruleBook matches a document whose rules are cited by heading alone.
	ruleBook = regexp.MustCompile(`\b(?:API|PROTOCOL)\.md\b`)
	// decision matches a decision by its number, and following numbers.
	decision = regexp.MustCompile("ops/decisions/(\\d{4})" +
		"(?:[\\w.-]*`?(?:,| and|, and) `?\\d{4}\\b)*")
	number = regexp.MustCompile(`\b\d{4}\b`)
	// ownNumber matches a decision's number in another decision.
	ownNumber = regexp.MustCompile(`\b00\d\d\b`)
	// treePath matches a document's path in the tree.
	treePath = regexp.MustCompile(`\b(?:cluster|cmd|deploy|fsm|httpapi|ops|scheduler|secrets)` +
		`/[\w./-]*\w\.md\b`)
	// markdownLink matches a link and its target, relative or not.
	markdownLink = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)` +
		`|(?:href|src)="([^"]+)"`)
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	scheme     = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
)

// samples is a test with citations that are broken on purpose.
const samples = "ops/check/citations_test.go"

// bookTests check a document of rules as a whole and cite it without a heading.
var bookTests = []string{"httpapi/rules_test.go", "cmd/internal/sandboxagent/agentserver/rules_test.go"}

// gone matches citations of documents that are not in the tree, by file name or section. The
// expression is split so that this file does not match it.
var gone = regexp.MustCompile("api-" + "contract|seed-" + `api|\b[A-F]\.\d+(?:\.\d+)?\b`)

// Citations reports citations of headings, decisions or documents that do not exist.
func Citations(t *Texts) []string {
	var found []string
	for _, f := range t.Files {
		if f.Path == samples {
			continue
		}
		object := func(format string, args ...any) {
			found = append(found, f.Path+": "+fmt.Sprintf(format, args...))
		}
		for _, m := range gone.FindAllString(f.flat, -1) {
			object("%q names a document that is not in the tree; cite a heading of one that is", m)
		}
		t.decisionsCited(f, object)
		if !strings.Contains(f.flat, ".md") {
			continue // the rest is slow on a large tree
		}
		t.headingsCited(f, object)
		for _, p := range treePath.FindAllString(f.flat, -1) {
			if !t.names[p] {
				object("%s is not in the tree", p)
			}
		}
	}
	return found
}

// headingsCited checks one file's citations of headings.
func (t *Texts) headingsCited(f *Text, object func(string, ...any)) {
	cited := 0
	for _, m := range citation.FindAllStringSubmatch(f.flat, -1) {
		documents := t.documents(f, m[1])
		if len(documents) == 0 {
			object("%s is cited and not in the tree", m[1])
		}
		for _, q := range quoted.FindAllStringSubmatch(m[2], -1) {
			if len(documents) > 0 && !t.hasHeading(documents, q[1]) {
				object("%s has no heading %q", m[1], q[1])
			}
		}
		if ruleBook.MatchString(m[1]) {
			cited++
		}
	}
	if f.IsMarkdown() || slices.Contains(bookTests, f.Path) {
		return
	}
	if all := len(ruleBook.FindAllString(f.flat, -1)); all > cited {
		object("names a document of rules %d times without a heading", all-cited)
	}
}

// decisionsCited checks one file's citations of decisions. Decisions cite each other by number
// alone.
func (t *Texts) decisionsCited(f *Text, object func(string, ...any)) {
	numbers := map[string]bool{}
	for _, m := range decision.FindAllString(f.flat, -1) {
		for _, n := range number.FindAllString(m, -1) {
			numbers[n] = true
		}
	}
	if f.Dir() == "ops/decisions" {
		for _, n := range ownNumber.FindAllString(f.flat, -1) {
			numbers[n] = true
		}
	}
	index := f.Path == "ops/decisions/README.md"
	for n := range numbers {
		if !t.hasDecision(n) && !(index && strings.Contains(f.Body, "| "+n+" | part of ")) {
			object("there is no decision %s", n)
		}
	}
}

func (t *Texts) hasDecision(n string) bool {
	for p := range t.names {
		if strings.HasPrefix(p, "ops/decisions/"+n+"-") {
			return true
		}
	}
	return false
}

// Links reports relative Markdown links to a missing file or heading.
func Links(t *Texts) []string {
	var found []string
	for _, f := range t.Files {
		if !f.IsMarkdown() {
			continue
		}
		text := inlineCode.ReplaceAllString(strings.Join(prose(f.Body), "\n"), "")
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			if why := t.broken(f, m[1]+m[2]); why != "" {
				found = append(found, f.Path+": "+why)
			}
		}
	}
	return found
}

// broken says why a link is broken. It returns "" for a valid or external link.
func (t *Texts) broken(f *Text, link string) string {
	if scheme.MatchString(link) || strings.HasPrefix(link, "//") {
		return ""
	}
	target, anchor, _ := strings.Cut(link, "#")
	if plain, err := url.PathUnescape(target); err == nil {
		target = plain
	}
	p := f.Path
	if target != "" {
		p = path.Join(f.Dir(), target)
	}
	if !t.names[p] {
		return fmt.Sprintf("the link %s leads to no file", link)
	}
	if anchor == "" || path.Ext(p) != ".md" {
		return ""
	}
	if slices.Contains(anchorsOf(t.headings[p]), anchor) {
		return ""
	}
	return fmt.Sprintf("the link %s leads to no heading", link)
}
