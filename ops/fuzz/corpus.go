package main

import (
	"cmp"
	"errors"
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"bivouac.dev/bivouac/ops/check"
)

// largestKept bounds one stored input, in bytes, to keep the tree small.
const largestKept = 2 << 10

// keep copies inputs of all sizes until there are at most that many.
func keep(from, to string, most int) (int, error) {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	sizes := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		if info.Size() <= largestKept {
			sizes[e.Name()] = info.Size()
		}
	}
	var names []string
	for name := range sizes {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
	if err := os.MkdirAll(to, 0o755); err != nil {
		return 0, err
	}
	there, err := os.ReadDir(to)
	if err != nil {
		return 0, err
	}
	kept := 0
	for _, name := range spread(names, most-len(there)) {
		raw, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return kept, err
		}
		if err := os.WriteFile(filepath.Join(to, name), raw, 0o644); err != nil {
			return kept, err
		}
		kept++
	}
	return kept, nil
}

// spread picks at most that many names, evenly.
func spread(names []string, most int) []string {
	if most <= 0 {
		return nil
	}
	if len(names) <= most {
		return names
	}
	out := make([]string, most)
	for i := range out {
		out[i] = names[i*len(names)/most]
	}
	return out
}

// functions lists the top-level functions of a file.
func functions(f *check.File) []string {
	var names []string
	for _, d := range f.AST.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
			names = append(names, fn.Name.Name)
		}
	}
	return names
}
