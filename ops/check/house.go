package check

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"slices"
	"strings"
)

// The size limits: a longer file is split.
const (
	maxFileLines     = 550
	maxTestFileLines = 900
)

// noNames are package names without meaning.
var noNames = []string{"util", "utils", "common", "helper", "helpers", "manager", "misc", "shared"}

// House reports violations of the project rules: files that are too long, package-level state,
// meaningless package names, and notes of unfinished work. Golangci-lint holds the length of
// functions and interfaces, and init.
func House(files []*File) []string {
	var found []string
	for _, f := range files {
		found = append(found, size(f)...)
		found = append(found, state(f)...)
		found = append(found, leftovers(f)...)
		if slices.Contains(noNames, f.AST.Name.Name) || slices.Contains(noNames, path.Base(f.Package())) {
			found = append(found, fmt.Sprintf("%s: package name %q says nothing", f.Path, f.AST.Name.Name))
		}
	}
	return found
}

func size(f *File) []string {
	limit := maxFileLines
	if f.IsTest() {
		limit = maxTestFileLines
	}
	if f.Lines > limit {
		return []string{fmt.Sprintf("%s: %d lines; split it (at most %d)", f.Path, f.Lines, limit)}
	}
	return nil
}

// state reports variables of the package that can change.
func state(f *File) []string {
	var found []string
	for _, decl := range f.AST.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.VAR || f.IsTest() || embedded(d) {
			continue
		}
		for _, spec := range d.Specs {
			if s, ok := spec.(*ast.ValueSpec); ok && stateful(s) {
				found = append(found, fmt.Sprintf("%s: package-level state %s; pass it in", f.at(s.Pos()), s.Names[0].Name))
			}
		}
	}
	return found
}

// embedded reports whether the build fills the variable from a file, or the linker from a flag
// (main.version).
func embedded(d *ast.GenDecl) bool {
	if d.Doc == nil {
		return false
	}
	for _, c := range d.Doc.List {
		if strings.HasPrefix(c.Text, "//go:embed ") || strings.Contains(c.Text, "-ldflags") {
			return true
		}
	}
	return false
}

// stateful tells package-level state from tables and sentinel errors. A variable can change or
// hold a resource if it has no value, or a value other than a literal, errors.New, a regular
// expression, a string replacer, or what a function of the package makes and the comment behind it
// calls read-only.
func stateful(s *ast.ValueSpec) bool {
	if s.Names[0].Name == "_" {
		return false
	}
	if len(s.Values) == 0 {
		return true
	}
	for _, v := range s.Values {
		if !constant(v) && !readOnly(v, s.Comment) {
			return true
		}
	}
	return false
}

func readOnly(e ast.Expr, behind *ast.CommentGroup) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || behind == nil || !strings.HasSuffix(behind.List[0].Text, "// read-only") {
		return false
	}
	made, ok := call.Fun.(*ast.Ident)
	return ok && made.Name != "make" && made.Name != "new"
}

func constant(e ast.Expr) bool {
	switch v := e.(type) {
	case *ast.BasicLit, *ast.CompositeLit, *ast.FuncLit, *ast.Ident, *ast.SelectorExpr, *ast.BinaryExpr:
		return true
	case *ast.UnaryExpr:
		return constant(v.X)
	case *ast.CallExpr:
		if _, conversion := v.Fun.(*ast.ArrayType); conversion {
			return true
		}
		sel, ok := v.Fun.(*ast.SelectorExpr)
		if !ok {
			id, isIdent := v.Fun.(*ast.Ident)
			return isIdent && (id.Name == "Errorf" || id.Name == "len")
		}
		switch types.ExprString(sel) {
		case "errors.New", "fmt.Errorf", "fsm.Errorf", "regexp.MustCompile", "strings.NewReplacer", "strings.Repeat",
			"uuid.MustParse", "netip.MustParsePrefix", "time.Date", "reflect.TypeOf", "template.Must", "base64.NewEncoding":
			return true
		}
	}
	return false
}

func leftovers(f *File) []string {
	var found []string
	for _, group := range f.AST.Comments {
		for _, c := range group.List {
			for _, word := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X"} {
				if strings.Contains(c.Text, word) {
					found = append(found, fmt.Sprintf("%s: %s left in the code; do it or file an issue", f.at(c.Pos()), word))
				}
			}
		}
	}
	return found
}

// Sleeps reports time.Sleep in tests outside a synctest bubble: a test waits for an index or a
// condition, not for a duration.
func Sleeps(files []*File) []string {
	var found []string
	for _, f := range files {
		if !f.IsTest() || imports(f, "testing/synctest") {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && types.ExprString(sel) == "time.Sleep" {
				found = append(found, f.at(sel.Pos())+": time.Sleep in a test; wait for a condition")
			}
			return true
		})
	}
	return found
}

func imports(f *File, p string) bool {
	for _, spec := range f.AST.Imports {
		if strings.Trim(spec.Path.Value, `"`) == p {
			return true
		}
	}
	return false
}
