package check

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"

	"bivouac.dev/bivouac/ops/runbooks"
)

// runbookName matches the runbook's name in a message.
var runbookName = regexp.MustCompile(`bivouac runbook ([a-z][a-z-]*)`)

// Runbooks reports strings that name a runbook which is not shipped, strings that name a
// runbook by its path in the tree, and runbooks that no error, log message or --help names.
func Runbooks(files []*File) []string {
	list, err := runbooks.List()
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	named := map[string]bool{}
	for _, f := range files {
		if f.IsTest() || f.Top() == "ops" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if strings.Contains(lit.Value, "ops/runbooks/") && !strings.HasPrefix(lit.Value, `"`+Module) {
				found = append(found,
					f.at(lit.Pos())+": a node's machine has no source tree; name the command \"bivouac runbook NAME\"")
			}
			for _, m := range runbookName.FindAllStringSubmatch(lit.Value, -1) {
				named[m[1]] = true
				if !slices.ContainsFunc(list, func(r runbooks.Runbook) bool { return r.Name == m[1] }) {
					found = append(found, fmt.Sprintf("%s: names the runbook %q, which is not in ops/runbooks", f.at(lit.Pos()), m[1]))
				}
			}
			return true
		})
	}
	for _, r := range list {
		if !named[r.Name] {
			found = append(found, fmt.Sprintf("ops/runbooks/%s.md: no message names the runbook %q", r.Name, r.Name))
		}
	}
	return found
}
