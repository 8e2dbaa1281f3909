package check

import (
	"strings"
	"testing"
)

func TestChangelog_ObjectsToWhatBreaksIt(t *testing.T) {
	for body, want := range map[string]string{
		"## Unreleased\n\n### Added\n\n- a\n- b\n":    "",
		"## Unreleased\n- a\n":                        "below no heading",
		"### Fixed\n- a\n- a\n":                       "twice",
		"### Fixed\n- a\n  and more\n":                "one line",
		"### Fixed\n- " + strings.Repeat("é", 99):     "longer than 100",
		"### Fixed\n- " + strings.Repeat("é", 98):     "",
		"### Fixed\n- a\n### Security\n- a\n":         "",
		"### Fixed\n- a\n\n### Internals\n\n- b\n":    "below no heading",
		"# Changelog\n\nWhat is said at the top.\n\n": "",
	} {
		got := strings.Join(Changelog(&Texts{Files: []*Text{{Path: "CHANGELOG.md", Body: body}}}), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: want an objection with %q, got %q", body, want, got)
		}
	}
}
