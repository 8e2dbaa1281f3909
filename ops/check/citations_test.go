package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// textRules are the checks of texts, each with a tree that breaks it and part of the expected
// message. want "" means a valid tree.
var textRules = []struct {
	name  string
	check func(*Texts) []string
	files map[string]string
	want  string
}{
	{
		"mirror",
		Registries,
		one("deploy/x.sh", "curl http://deb.debian"+".org/debian"),
		"ask the machine's package manager",
	},
	{"lock file", Registries, one("ops/package-lock.json", `"https://registry.npmjs`+`.org/x"`), "registry.npmjs"},
	{"contract", Citations, one("fsm/x.go", "// See api-"+"contract.md."), "not in the tree"},
	{"seed", Citations, one("deploy/x.hcl", "# seed-"+"api.md 2.1"), "not in the tree"},
	{"section", Citations, one("ops/x.md", "as (A"+".5) says"), "not in the tree"},
	{"subsection", Citations, one("fsm/x.go", "// as B"+".0.1 says"), "not in the tree"},
	{"heading", Citations, with("fsm/x.go", `// See API.md, "Pages".`), `no heading "Pages"`},
	{"heading in a document", Citations, with("DESIGN.md", "see `API.md`, \"Pages\""),
		`API.md has no heading "Pages"`},
	{"second heading", Citations, with("fsm/x.go", `// API.md, "Paging" and "Pages".`),
		`no heading "Pages"`},
	{"broken line", Citations, with("fsm/x.go", "// See API.md,\n\t// \"Many\n// pages\""),
		`no heading "Many pages"`},
	{"document", Citations, one("fsm/x.go", `// PROTOCOL.md, "Runs"`),
		"PROTOCOL.md is cited and not in the tree"},
	{"no heading named", Citations, with("fsm/x.go", "// See API.md."), "without a heading"},
	{"heading in code", Citations, map[string]string{
		"httpapi/API.md": "```\n# Paging\n```\n", "fsm/x.go": `// API.md, "Paging"`,
	}, `no heading "Paging"`},
	{"decision", Citations, one("fsm/x.go", "// ops/decisions/0099"), "no decision 0099"},
	{"second decision", Citations, with("DESIGN.md", "`ops/decisions/0001`, `0098`"),
		"no decision 0098"},
	{"decision of a decision", Citations, one("ops/decisions/0001-a.md", "# 0001: a\nSee 0097."),
		"no decision 0097"},
	{"path", Citations, one("fsm/x.go", `const x = "see ops/runbooks/none.md"`),
		"ops/runbooks/none.md is not in the tree"},
	{"good citations", Citations, with("fsm/x.go", "// API.md, \"Paging\" and\n// \"Two words\"; "+
		"ops/decisions/0001; httpapi/API.md,\n// \"Paging\"."), ""},
	{"numbered heading", Citations, map[string]string{
		"DESIGN.md": "## 3. Who is who", "fsm/x.go": `// DESIGN.md, "Who is who"`,
	}, ""},

	{"link", Links, one("README.md", "[x](none.md)"), "none.md leads to no file"},
	{"link upwards", Links, one("ops/a.md", "[x](../README.md)"), "leads to no file"},
	{"anchor", Links, with("README.md", "[x](httpapi/API.md#pages)"), "leads to no heading"},
	{"own anchor", Links, one("README.md", "# A\n[x](#b)"), "leads to no heading"},
	{"image", Links, one("README.md", `<img src="plots/none.svg">`), "leads to no file"},
	{"good links", Links, with("README.md", "[x](httpapi/API.md#two-words) [y](httpapi) "+
		"[z](https://example.org/none.md)\n# A `b`: c\n[own](#a-b-c) `[code](none.md)`\n"+
		"```\n[code](none.md)\n```\n# A b c\n[again](#a-b-c-1)"), ""},

	{"map", Maps, one("fsm/DESIGN.md", "`DESIGN.md`, `none.go`"), "none.go is not in the tree"},
	{"map of another package", Maps, map[string]string{"fsm/DESIGN.md": "`x.go`", "httpapi/x.go": ""},
		"x.go is not in the tree"},
	{"folder", Maps, one("fsm/DESIGN.md", "`none/`"), "none/ is not in the tree"},
	{"tree", Maps, map[string]string{
		"DESIGN.md": "\n## 4. The tree\n\n```\nfsm/   a\n  none/  b\n```\n", "fsm/x.go": "",
	}, "none/ in fsm/"},
	{"walk", Walks, map[string]string{
		"CONTRIBUTING.md": "`fsm/<noun>_commands.go`, `fsm/gone.go` and `make test`", "fsm/a_commands.go": "",
	}, "CONTRIBUTING.md: fsm/gone.go is not in the tree"},
	{"good walk", Walks, map[string]string{
		"CONTRIBUTING.md": "`fsm/<noun>_commands.go` and `make test`", "fsm/a_commands.go": "",
	}, ""},
	{"good maps", Maps, map[string]string{
		"DESIGN.md":     "\n## 4. The tree\n\n```\nfsm/   a\n  sub/  b\n```\n`x.go` `fsm/sub/y.go`",
		"fsm/DESIGN.md": "`x.go` `sub/` `y.go` `<noun>.go` `s*/y.go`", "fsm/x.go": "", "fsm/sub/y.go": "",
	}, ""},
}

// one makes a tree of one file.
func one(file, body string) map[string]string { return map[string]string{file: body} }

// with makes a tree of a small API.md, a decision and one more file.
func with(file, body string) map[string]string {
	return map[string]string{
		"httpapi/API.md":          "# The API\n## Paging\n### Two words\n",
		"ops/decisions/0001-a.md": "# 0001: a\n",
		file:                      body,
	}
}

func TestTree_TextsKeepTheRules(t *testing.T) {
	texts, err := LoadTexts("../..")
	if err != nil {
		t.Fatal(err)
	}
	cited := 0
	for _, f := range texts.Files {
		cited += len(citation.FindAllString(f.flat, -1))
	}
	if len(texts.Files) < 100 || cited < 50 {
		t.Fatalf("%d texts with %d citations: the wrong folder?", len(texts.Files), cited)
	}
	if n := len(sortedIn(texts, decisionsDir)); n < 30 {
		t.Fatalf("only %d decisions found", n)
	}
	for _, check := range []func(*Texts) []string{Citations, Links, Maps, Walks, Decisions, Changelog, Registries} {
		for _, objection := range check(texts) {
			t.Error(objection)
		}
	}
}

func TestTextRules_ObjectToWhatBreaksThem(t *testing.T) {
	for _, r := range textRules {
		t.Run(r.name, func(t *testing.T) {
			root := t.TempDir()
			for name, body := range r.files {
				file := filepath.Join(root, filepath.FromSlash(name))
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(body), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			texts, err := LoadTexts(root)
			if err != nil {
				t.Fatal(err)
			}
			objections := strings.Join(r.check(texts), "\n")
			if (r.want == "") != (objections == "") || !strings.Contains(objections, r.want) {
				t.Errorf("want an objection with %q, got %q", r.want, objections)
			}
		})
	}
}
