package check

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// logMethods are those of slog.Logger that take a message.
var logMethods = []string{
	"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "Log", "LogAttrs",
}

// loggedPair is a key and a value inside a message.
var loggedPair = regexp.MustCompile(`[a-z]=[^=]`)

// Logs reports messages of log lines that hold a key and a value. Golangci-lint (sloglint) holds
// messages to be constant and keys to the list of ops/LOGS.md.
func Logs(files []*File) []string {
	var found []string
	for _, f := range files {
		if f.IsTest() || f.Top() == "ops" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(logMethods, method.Sel.Name) {
				return true
			}
			for _, arg := range call.Args[:min(3, len(call.Args))] { // context, level, message
				text, ok := arg.(*ast.BasicLit)
				if ok && text.Kind == token.STRING && strings.Contains(text.Value, " ") && loggedPair.MatchString(text.Value) {
					found = append(found,
						fmt.Sprintf("%s: the message %s holds a key and a value; make it an attribute", f.at(text.Pos()), text.Value))
				}
			}
			return true
		})
	}
	return found
}
