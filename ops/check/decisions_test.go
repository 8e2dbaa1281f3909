package check

import (
	"strings"
	"testing"
)

const goodDecision = "# 0001: A title\n\n2026-11-22\n\n## Context\n\n## Decision\n\n## Consequences\n"

func TestDecisions_ObjectToAnotherForm(t *testing.T) {
	const file, table = decisionsDir + "/0001-a.md", "| [0001](0001-a.md) | A title |\n"
	second := strings.Replace(goodDecision, "0001", "0003", 1)
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"good": {map[string]string{file: goodDecision, decisionsDir + "/README.md": table}, ""},
		"gap":  {map[string]string{file: goodDecision, decisionsDir + "/0003-b.md": second}, "the next number is 0002"},
		"folded": {map[string]string{file: goodDecision, decisionsDir + "/0003-b.md": second,
			decisionsDir + "/README.md": table + "| 0002 | part of 0001 |\n| [0003](0003-b.md) | A title |\n"}, ""},
		"number": {map[string]string{decisionsDir + "/0002-a.md": goodDecision}, "has the number in its name"},
		"date":   {one(file, strings.Replace(goodDecision, "2026-11-22", "today", 1)), "and a date"},
		"parts":  {one(file, strings.Replace(goodDecision, "## Decision", "## Decided", 1)), "has the parts"},
		"index":  {map[string]string{file: goodDecision, decisionsDir + "/README.md": "none"}, "the table is not this"},
	} {
		t.Run(name, func(t *testing.T) {
			texts := &Texts{}
			for path, body := range test.files {
				texts.Files = append(texts.Files, &Text{Path: path, Body: body})
			}
			got := strings.Join(Decisions(texts), "\n")
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("want an objection with %q, got %q", test.want, got)
			}
		})
	}
}
