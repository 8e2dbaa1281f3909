package check

import (
	"fmt"
	"go/ast"
	"go/token"
	"sort"
	"strings"
)

// Docs reports exported names without godoc, godoc that does not start with the name, and
// packages without a package comment. Methods that implement an interface need a line as well. Test
// files are exempt. Golangci-lint (revive) leaves out commands, and methods such as Error.
func Docs(files []*File) []string {
	var found []string
	documented := map[string]bool{}
	packages := map[string]*File{}
	for _, f := range files {
		if f.IsTest() {
			continue
		}
		if f.AST.Doc != nil {
			documented[f.Package()] = true
		}
		packages[f.Package()] = f
		for _, decl := range f.AST.Decls {
			found = append(found, undocumented(f, decl)...)
		}
	}
	for p := range packages {
		if !documented[p] {
			found = append(found, p+": no package comment")
		}
	}
	sort.Strings(found)
	return found
}

func undocumented(f *File, decl ast.Decl) []string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if !d.Name.IsExported() || !exportedReceiver(d) {
			return nil
		}
		return judge(f, d.Pos(), d.Name.Name, d.Doc)
	case *ast.GenDecl:
		return undocumentedSpecs(f, d)
	}
	return nil
}

func undocumentedSpecs(f *File, d *ast.GenDecl) []string {
	var found []string
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() {
				doc := s.Doc
				if doc == nil {
					doc = d.Doc
				}
				found = append(found, judge(f, s.Pos(), s.Name.Name, doc)...)
			}
		case *ast.ValueSpec:
			// A group's comment documents all its members.
			if s.Names[0].IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil && d.Tok != token.IMPORT {
				found = append(found, fmt.Sprintf("%s: %s has no godoc", f.at(s.Pos()), s.Names[0].Name))
			}
		}
	}
	return found
}

func judge(f *File, pos token.Pos, name string, doc *ast.CommentGroup) []string {
	if doc == nil {
		return []string{fmt.Sprintf("%s: %s has no godoc", f.at(pos), name)}
	}
	text := strings.TrimSpace(doc.Text())
	first, _, _ := strings.Cut(text, " ")
	if article := first == "A" || first == "An" || first == "The"; first != name && !article {
		return []string{fmt.Sprintf("%s: godoc of %s should begin with its name", f.at(pos), name)}
	}
	return nil
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	id, ok := t.(*ast.Ident)
	return ok && id.IsExported()
}
