package check

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Module is the import path of this module.
const Module = "bivouac.dev/bivouac"

// File is one parsed Go file.
type File struct {
	// Path is relative to the tree's root, with slashes.
	Path string
	// Lines is the number of lines.
	Lines int
	AST   *ast.File
	Fset  *token.FileSet
}

// IsTest reports whether the file is a test file.
func (f *File) IsTest() bool { return strings.HasSuffix(f.Path, "_test.go") }

// Package returns the file's folder, relative to the root.
func (f *File) Package() string { return path.Dir(f.Path) }

// Top returns the file's top-level folder.
func (f *File) Top() string {
	top, _, _ := strings.Cut(f.Path, "/")
	return top
}

// at formats a position in the file.
func (f *File) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.Path, f.Fset.Position(pos).Line)
}

// Load parses every Go file below root. It skips nested modules (deploy/tools/nomad), testdata,
// folders whose name begins with a dot, and build output.
func Load(root string) ([]*File, error) {
	var files []*File
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(root, p, d.Name())
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parse(root, p)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", root, err)
	}
	return files, nil
}

func skipDir(root, p, name string) error {
	if p == root {
		return nil
	}
	if strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

func parse(root, p string) (*File, error) {
	src, err := os.ReadFile(p)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(root, p)
	if err != nil {
		return nil, err
	}
	return &File{
		Path:  filepath.ToSlash(rel),
		Lines: strings.Count(string(src), "\n"),
		AST:   tree,
		Fset:  fset,
	}, nil
}
