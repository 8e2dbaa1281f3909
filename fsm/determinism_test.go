package fsm

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNoClockNoChance reads the package's own source: Apply must not be able to reach a clock, a
// random source, the environment or another of the project's packages.
func TestNoClockNoChance(t *testing.T) {
	allowed := []string{
		"bufio", "bytes", "cmp", "container/heap", "context", "crypto/hmac", "crypto/sha256", "encoding/base64",
		"encoding/binary",
		"encoding/hex", "encoding/json", "errors", "fmt", "hash", "io", "iter", "maps", "math", "path", "reflect", "slices",
		"strconv", "strings", "sync", "sync/atomic", "time", "unicode/utf8", "github.com/hashicorp/go-memdb",
		"github.com/go-json-experiment/json/v1",
	}
	// Of package time only what computes with given times.
	allowedTime := []string{
		"Time", "Duration", "Microsecond", "Second", "Minute", "Hour",
	}
	names, err := filepath.Glob("*.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("no source found: %v", err)
	}
	set := gotoken.NewFileSet()
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%s: the import of %s", set.Position(i.Pos()), path)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" && !slices.Contains(allowedTime, s.Sel.Name) {
				t.Errorf("%s: time.%s", set.Position(s.Pos()), s.Sel.Name)
			}
			return true
		})
	}
}
