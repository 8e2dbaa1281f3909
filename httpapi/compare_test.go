package httpapi

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/proxy"
)

// TestKeys_AreComparedInConstantTime parses this package and its subpackages. A key or its hash is
// never compared with == or != or another function that stops at the first difference, and each
// place that decides by one calls crypto/subtle or hmac.Equal.
func TestKeys_AreComparedInConstantTime(t *testing.T) {
	fset := token.NewFileSet()
	var names []string
	for _, pattern := range []string{"*.go", "apikey/*.go", "proxy/*.go", "response/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	deciders := map[string]bool{"Is": false, "Opens": false, "passOpens": false, "shareOpens": false}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, is := decl.(*ast.FuncDecl)
			if !is || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BinaryExpr:
					// Hashes of stored objects detect changes; they contain nothing from a client.
					stored := storedHash(n.X) && storedHash(n.Y)
					if (n.Op == token.EQL || n.Op == token.NEQ) && (secretHash(n.X) || secretHash(n.Y)) && !stored && !isEmpty(n.X) &&
						!isEmpty(n.Y) {
						t.Errorf("%s: %s compares a key as texts are compared", fset.Position(n.Pos()), fn.Name.Name)
					}
				case *ast.SelectorExpr:
					pkg, is := n.X.(*ast.Ident)
					if is && (pkg.Name == "subtle" && n.Sel.Name == "ConstantTimeCompare" ||
						pkg.Name == "hmac" && n.Sel.Name == "Equal") {
						if _, listed := deciders[fn.Name.Name]; !listed {
							t.Errorf("%s decides by a key and is not in this list", fn.Name.Name)
						}
						deciders[fn.Name.Name] = true
					}
				}
				return true
			})
		}
	}
	for name, constant := range deciders {
		if !constant {
			t.Errorf("%s does not compare in constant time any more", name)
		}
	}
}

// secretHash reports whether an expression is the hash of a key, or a MAC.
func secretHash(e ast.Expr) bool {
	if storedHash(e) {
		return true
	}
	call, is := e.(*ast.CallExpr)
	if !is {
		return false
	}
	var name *ast.Ident
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		name = fun
	case *ast.SelectorExpr: // apikey.Hash
		name = fun.Sel
	default:
		return false
	}
	return name.Name == "Hash" || name.Name == "cookieMAC" || name.Name == "newCookieValue"
}

// storedHash reports whether an expression is a row's member with such a hash.
func storedHash(e ast.Expr) bool {
	sel, is := e.(*ast.SelectorExpr)
	return is && (sel.Sel.Name == "KeyHash" || sel.Sel.Name == "Hash")
}

func isEmpty(e ast.Expr) bool {
	lit, is := e.(*ast.BasicLit)
	return is && lit.Value == `""`
}

// TestKeys_TimingMeasured prints Welch's t for checking keys of two classes, as dudect does: keys
// that share nothing with the right one against keys that differ only in the last character, and a
// known lookup against an unknown one. Above about 4.5 a difference is likely. It asserts nothing,
// because a busy machine makes the measurement unreliable; TestKeys_AreComparedInConstantTime
// asserts.
func TestKeys_TimingMeasured(t *testing.T) {
	right := "bvk_" + apikey.Random(apikey.LookupLen) + "_" + apikey.Random(apikey.SecretLen)
	key := &fsm.APIKey{Hash: apikey.Hash(right)}
	row := &fsm.Sandbox{ID: "s", KeyHash: apikey.Hash(right)}
	near, far := right[:len(right)-1]+"!", "bvk_"+apikey.Random(apikey.LookupLen)+"_"+apikey.Random(apikey.SecretLen)
	for what, pair := range map[string][2]func() bool{
		"API key, nearly right against all wrong": {
			func() bool { return apikey.Matches(key, near) },
			func() bool { return apikey.Matches(key, far) },
		},
		"API key, there against not there": {
			func() bool { return apikey.Matches(key, far) },
			func() bool { return apikey.Matches(nil, far) },
		},
		"sandbox key, nearly right against all wrong": {
			func() bool { return proxy.Opens(row, near) },
			func() bool { return proxy.Opens(row, far) },
		},
		"sandbox key, there against not there": {
			func() bool { return proxy.Opens(row, far) },
			func() bool { return proxy.Opens(nil, far) },
		},
	} {
		t.Logf("%s: t = %.2f", what, welch(pair, 20_000))
	}
}

// warmUp is how many calls are not measured.
const warmUp = 5000

// welch times two functions in random order, about n times each. It returns Welch's t without
// outliers of more than four times the usual duration.
func welch(pair [2]func() bool, n int) float64 {
	var samples [2][]float64
	for i := range 2*n + warmUp {
		class := rand.IntN(2)
		begin := time.Now()
		pair[class]()
		if took := time.Since(begin); i >= warmUp {
			samples[class] = append(samples[class], float64(took))
		}
	}
	var mean, variance, count [2]float64
	for class, list := range samples {
		limit := 0.0
		for _, v := range list {
			limit += v / float64(len(list))
		}
		for _, v := range list {
			if v < 4*limit { // outliers come from the scheduler
				count[class]++
				d := v - mean[class]
				mean[class] += d / count[class]
				variance[class] += d * (v - mean[class])
			}
		}
		variance[class] /= count[class] - 1
	}
	return (mean[0] - mean[1]) / math.Sqrt(variance[0]/count[0]+variance[1]/count[1])
}
