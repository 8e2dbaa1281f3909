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
)

// TestKeys_AreComparedInConstantTime reads this package: a key, or the hash of
// one, is never compared with == or != or anything that stops at the first
// difference, and each place that decides by one calls crypto/subtle or hmac.Equal.
func TestKeys_AreComparedInConstantTime(t *testing.T) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	deciders := map[string]bool{"matches": false, "opens": false, "cookieOpens": false, "handleAPIKeyCreate": false}
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
					// Hashes of stored things say whether they are still the same
					// thing; nothing a client sent is in them.
					stored := storedHash(n.X) && storedHash(n.Y)
					if (n.Op == token.EQL || n.Op == token.NEQ) && (secretHash(n.X) || secretHash(n.Y)) && !stored && !isEmpty(n.X) && !isEmpty(n.Y) {
						t.Errorf("%s: %s compares a key as texts are compared", fset.Position(n.Pos()), fn.Name.Name)
					}
				case *ast.SelectorExpr:
					pkg, is := n.X.(*ast.Ident)
					if is && (pkg.Name == "subtle" && n.Sel.Name == "ConstantTimeCompare" || pkg.Name == "hmac" && n.Sel.Name == "Equal") {
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

// secretHash: an expression that is the hash of a key, or a MAC.
func secretHash(e ast.Expr) bool {
	if storedHash(e) {
		return true
	}
	call, is := e.(*ast.CallExpr)
	if !is {
		return false
	}
	name, is := call.Fun.(*ast.Ident)
	return is && (name.Name == "hashKey" || name.Name == "cookieMAC" || name.Name == "newCookieValue")
}

// storedHash: a member of a row that holds such a hash.
func storedHash(e ast.Expr) bool {
	sel, is := e.(*ast.SelectorExpr)
	return is && (sel.Sel.Name == "KeyHash" || sel.Sel.Name == "Hash")
}

func isEmpty(e ast.Expr) bool {
	lit, is := e.(*ast.BasicLit)
	return is && lit.Value == `""`
}

// TestKeys_TimingMeasured prints Welch's t for checking keys of two classes, as
// dudect does: those that share nothing with the right one, and those whose last
// character alone is wrong; and for a key that is there against one that is not.
// Above about 4.5 a difference is likely. It asserts nothing: on a busy machine
// such a measurement proves nothing either way; TestKeys_AreComparedInConstantTime
// does.
func TestKeys_TimingMeasured(t *testing.T) {
	right := "bvk_" + randomBase62(lookupLen) + "_" + randomBase62(secretLen)
	key := &fsm.APIKey{Hash: hashKey(right)}
	row := &fsm.Sandbox{ID: "s", KeyHash: hashKey(right)}
	near, far := right[:len(right)-1]+"!", "bvk_"+randomBase62(lookupLen)+"_"+randomBase62(secretLen)
	for what, pair := range map[string][2]func() bool{
		"API key, nearly right against all wrong":     {func() bool { return matches(key, near) }, func() bool { return matches(key, far) }},
		"API key, there against not there":            {func() bool { return matches(key, far) }, func() bool { return matches(nil, far) }},
		"sandbox key, nearly right against all wrong": {func() bool { return opens(row, near) }, func() bool { return opens(row, far) }},
		"sandbox key, there against not there":        {func() bool { return opens(row, far) }, func() bool { return opens(nil, far) }},
	} {
		t.Logf("%s: t = %.2f", what, welch(pair, 20_000))
	}
}

// warmUp is how many calls do not count.
const warmUp = 5000

// welch times two functions in a random order, about n times each, and gives
// Welch's t without what took four times as long as usual.
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
			if v < 4*limit { // the scheduler's, not ours
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
