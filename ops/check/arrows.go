package check

import (
	"fmt"
	"slices"
	"strings"
)

// mayImport is the table of DESIGN.md, "Who imports whom": for each top-level
// folder, which others of ours it may import. Missing means nothing.
var mayImport = map[string][]string{
	"fsm":       {},
	"secrets":   {},
	"cluster":   {"fsm"},
	"scheduler": {"fsm"},
	"httpapi":   {"fsm", "cluster"},
	"cmd":       {"fsm", "secrets", "cluster", "scheduler", "httpapi"},
	"deploy":    {},
	"ops":       {"deploy", "cluster", "fsm"}, // drills seed and compare states through the peer port
}

// narrow holds the packages that may import less than their folder: nothing but
// what is listed and the standard library.
var narrow = map[string][]string{
	"cluster/raftfix": {"github.com/hashicorp/raft"},
}

// owners says which folder alone may import a dependency, by prefix.
var owners = map[string][]string{
	"github.com/hashicorp/go-memdb":       {"fsm"},
	"github.com/go-json-experiment/json":  {"fsm"},
	"github.com/hashicorp/vault/api":      {"secrets", "deploy"},
	"github.com/hashicorp/raft":           {"cluster"},
	"github.com/hashicorp/raft-boltdb":    {"cluster"},
	"github.com/hashicorp/raft-wal":       {"cluster"},
	"github.com/hashicorp/nomad/api":      {"scheduler", "deploy"},
	"github.com/julienschmidt/httprouter": {"httpapi"},
	"github.com/hashicorp/hcl":            {"cmd"},
	"github.com/spf13/cobra":              {"cmd", "deploy", "ops"},
}

// Arrows reports every import against the direction of DESIGN.md. Tests may
// also use deploy/local (the real servers), and those of cmd and ops anything.
func Arrows(files []*File) []string {
	var found []string
	for _, f := range files {
		allowed, known := mayImport[f.Top()]
		if !known {
			found = append(found, fmt.Sprintf("%s: %q is not one of the top-level folders", f.Path, f.Top()))
			continue
		}
		for _, spec := range f.AST.Imports {
			p := strings.Trim(spec.Path.Value, `"`)
			why := forbidden(f, p, allowed)
			if only, is := narrow[f.Package()]; is && why == "" && !f.IsTest() && !within(p, only) {
				why = fmt.Sprintf("%s imports nothing but %s and the standard library", f.Package(), strings.Join(only, ", "))
			}
			if why != "" {
				found = append(found, f.at(spec.Pos())+": "+why)
			}
		}
	}
	return found
}

// within reports whether an import is one of those, or the standard library's.
func within(imported string, only []string) bool {
	host, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(host, ".") || slices.Contains(only, imported)
}

func forbidden(f *File, imported string, allowed []string) string {
	if rest, ours := strings.CutPrefix(imported, Module+"/"); ours {
		return forbiddenOurs(f, rest, allowed)
	}
	for prefix, who := range owners {
		if imported != prefix && !strings.HasPrefix(imported, prefix+"/") {
			continue
		}
		if !slices.Contains(who, f.Top()) && !f.IsTest() {
			return fmt.Sprintf("%s belongs to %s", prefix, strings.Join(who, ", "))
		}
	}
	return ""
}

func forbiddenOurs(f *File, rest string, allowed []string) string {
	top, _, _ := strings.Cut(rest, "/")
	switch {
	case top == f.Top(), slices.Contains(allowed, top):
		return ""
	case f.IsTest() && (top == "deploy" || f.Top() == "cmd" || f.Top() == "ops"):
		return ""
	}
	return fmt.Sprintf("%s must not import %s", f.Top(), top)
}
