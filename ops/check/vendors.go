package check

import (
	"fmt"
	"go/ast"
	"go/token"
	"net/url"
	"strconv"
	"strings"
)

// vendorTable is the file that has the vendors of models.
const vendorTable = "scheduler/agent/preset/vendor.go"

// Vendors reports a second place that says where a vendor of models is. Tables that differ send a key,
// or a model's name, to another server than the gateway does.
func Vendors(files []*File) []string {
	hosts := map[string]bool{}
	for _, f := range files {
		if f.Path == vendorTable {
			urlsIn(f, func(u *url.URL, _ token.Pos) { hosts[u.Hostname()] = true })
		}
	}
	var found []string
	if len(hosts) == 0 {
		return append(found, vendorTable+" has no vendor of models")
	}
	for _, f := range files {
		if f.Path == vendorTable || f.IsTest() {
			continue
		}
		urlsIn(f, func(u *url.URL, at token.Pos) {
			if hosts[u.Hostname()] && u.Hostname() != "localhost" {
				found = append(found, fmt.Sprintf("%s: %s stands in %s: ask preset.VendorOf", f.at(at), u.Hostname(), vendorTable))
			}
		})
	}
	return found
}

// urlsIn calls fn with each URL that is a text of a file.
func urlsIn(f *File, fn func(*url.URL, token.Pos)) {
	ast.Inspect(f.AST, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil || !strings.HasPrefix(text, "http") {
			return true
		}
		if u, err := url.Parse(text); err == nil && u.Host != "" {
			fn(u, lit.Pos())
		}
		return true
	})
}
