package check

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// processCalls are the functions that change the process of whoever calls them. A method of the
// same name as a listed function (t.Setenv) does so too.
var processCalls = map[string][]string{
	"os": {"Setenv", "Unsetenv", "Clearenv", "Chdir"},
	"syscall": {
		"Setenv",
		"Unsetenv",
		"Clearenv",
		"Chdir",
		"Fchdir",
		"Chroot",
		"Umask",
		"Setrlimit",
		"Setuid",
		"Setgid",
		"Setgroups",
		"Setpriority",
	},
	"unix": {
		"Setenv",
		"Unsetenv",
		"Clearenv",
		"Chdir",
		"Fchdir",
		"Chroot",
		"Umask",
		"Setrlimit",
		"Prlimit",
		"Prctl",
		"Setpriority",
	},
	"runtime": {"GOMAXPROCS", "SetMutexProfileFraction", "SetBlockProfileRate"},
	"debug":   {"SetGCPercent", "SetMemoryLimit", "SetMaxStack", "SetMaxThreads", "SetTraceback"},
	"signal":  {"Ignore", "Reset"},
	"slog":    {"SetDefault"},
	"log":     {"SetOutput", "SetFlags", "SetPrefix"},
	"flag":    {"Set"},
}

// processMethods are methods of testing.TB that change the process until the test ends.
var processMethods = []string{"Setenv", "Chdir"}

// processVariables are variables that all of a process share.
var processVariables = []string{
	"os.Stdin", "os.Stdout", "os.Stderr", "os.Args", "time.Local",
	"http.DefaultTransport", "http.DefaultClient", "http.DefaultServeMux",
}

// Process reports tests that change their whole process: a limit, the environment or GOMAXPROCS
// that a test sets is its neighbours' too, and the test runner's. Allowed are TestMain, which sets
// it for its binary, and functions that call ownprocess.Enter.
func Process(files []*File) []string {
	var found []string
	for _, f := range files {
		if !f.IsTest() {
			continue
		}
		for _, decl := range f.AST.Decls {
			fn, is := decl.(*ast.FuncDecl)
			if !is || fn.Name.Name == "TestMain" || entersOwnProcess(fn) {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if what := changesProcess(n); what != "" {
					found = append(found,
						fmt.Sprintf("%s: %s changes the whole process; pass the value in, or call ownprocess.Enter", f.at(n.Pos()), what))
				}
				return true
			})
		}
	}
	return found
}

func entersOwnProcess(fn *ast.FuncDecl) (enters bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if call, is := n.(*ast.CallExpr); is && types.ExprString(call.Fun) == "ownprocess.Enter" {
			enters = true
		}
		return !enters
	})
	return enters
}

// changesProcess returns the name of what the node sets, or "".
func changesProcess(n ast.Node) string {
	switch n := n.(type) {
	case *ast.CallExpr:
		sel, is := n.Fun.(*ast.SelectorExpr)
		if !is {
			return ""
		}
		name := types.ExprString(sel)
		if name == "runtime.GOMAXPROCS" && len(n.Args) == 1 && types.ExprString(n.Args[0]) == "0" {
			return "" // a question
		}
		if pkg, is := sel.X.(*ast.Ident); is && slices.Contains(processCalls[pkg.Name], sel.Sel.Name) {
			return name
		}
		if slices.Contains(processMethods, sel.Sel.Name) {
			return name
		}
	case *ast.AssignStmt:
		for _, left := range n.Lhs {
			for _, v := range processVariables {
				if name := types.ExprString(left); name == v || strings.HasPrefix(name, v+".") {
					return name
				}
			}
		}
	}
	return ""
}
