package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVendors_ObjectsToASecondTable: a vendor's address in another file is an objection.
func TestVendors_ObjectsToASecondTable(t *testing.T) {
	root := t.TempDir()
	for name, source := range map[string]string{
		vendorTable: "package preset\nvar vendors = []string{\"https://a.example.org/v1\", \"http://localhost:1/v1\"}",
		"fsm/x.go": "package fsm\nconst a, b, c = \"https://a.example.org/v2\", " +
			"\"https://b.example.org\", \"http://localhost:2\"",
	} {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if got := Vendors(files); len(got) != 1 || !strings.HasPrefix(got[0],
		"fsm/x.go:2: a.example.org stands in "+vendorTable) {
		t.Errorf("the objections are %q", got)
	}
}
