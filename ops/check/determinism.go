package check

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// chance maps packages that read time, randomness or the machine to the reason why fsm must not
// import them: every node has to compute the same state.
var chance = map[string]string{
	"math/rand":              "randomness",
	"math/rand/v2":           "randomness",
	"crypto/rand":            "randomness",
	"github.com/google/uuid": "randomness",
	"os":                     "the environment",
	"net":                    "the network",
	"net/http":               "the network",
	"runtime":                "the machine",
}

// clockCalls are the functions of package time that read the clock or wait.
var clockCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}

// Determinism reports whatever could make two nodes differ after applying the same log: a
// clock, randomness or the environment in package fsm, except in test files.
func Determinism(files []*File) []string {
	var found []string
	for _, f := range files {
		if f.Top() != "fsm" || f.IsTest() {
			continue
		}
		for _, spec := range f.AST.Imports {
			p := strings.Trim(spec.Path.Value, `"`)
			if why, bad := chance[p]; bad {
				found = append(found, fmt.Sprintf("%s: fsm must not import %s: it brings %s into Apply", f.at(spec.Pos()), p, why))
			}
		}
		for _, call := range timeCalls(f, clockCalls) {
			found = append(found,
				fmt.Sprintf("%s: fsm must not call %s: time travels in the Command", f.at(call.Pos()), render(call)))
		}
	}
	return found
}

// timeCalls finds time.X for the given names.
func timeCalls(f *File, names []string) []*ast.SelectorExpr {
	var calls []*ast.SelectorExpr
	ast.Inspect(f.AST, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(names, sel.Sel.Name) {
			calls = append(calls, sel)
		}
		return true
	})
	return calls
}

func render(sel *ast.SelectorExpr) string {
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return sel.Sel.Name
}
