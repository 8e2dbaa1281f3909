package hooks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse_EveryForm(t *testing.T) {
	for _, text := range []string{
		`{"pre_tool_use":[{"matcher":"terminal","hooks":[{"command":"a"}]}]}`,
		`{"PreToolUse":[{"matcher":"terminal","hooks":[{"type":"command","command":"a","timeout":60}]}]}`,
		`{"hooks":{"PreToolUse":[{"matcher":"terminal","hooks":[{"command":"a","timeout":-1}]}]}}`,
	} {
		c, err := Parse([]byte(text))
		if err != nil || len(c.For(PreToolUse, "terminal")) != 1 ||
			c.For(PreToolUse, "terminal")[0] != (Definition{"command", "a", 60, false}) ||
			c.Stop == nil || c.For(PreToolUse, "other") != nil || c.For("x", "terminal") != nil {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	for _, text := range []string{`{}`, `{"hooks":{}}`, `{"stop":[{"hooks":[]}]}`} {
		if c, err := Parse([]byte(text)); c != nil || err != nil {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	for _, text := range []string{
		`[]`, `{"PreTool":[]}`, `{"stop":[{"hooks":[{"command":"a"}]}],"Stop":[]}`, `{"stop":1}`, `{"stop":[{"hooks":[{}]}]}`,
		`{"stop":[{"hooks":[` + strings.Repeat(`{"command":"a"},`, maxHooks) + `{"command":"a"}]}]}`,
	} {
		if c, err := Parse([]byte(text)); err == nil {
			t.Errorf("%.80s: %+v", text, c)
		}
	}
}

func TestMatcher_Fits(t *testing.T) {
	for _, c := range []struct {
		matcher, tool string
		want          bool
	}{
		{"*", "", true}, {"", "x", true}, {"terminal", "terminal", true}, {
			"terminal",
			"terminals",
			false,
		}, {"term|file", "file", true},
		{
			"term.*",
			"terminal",
			true,
		}, {"/t.+l/", "terminal", true}, {"/t/", "terminal", false}, {"(", "(", true}, {"(", "x", false}, {"a", "", false},
	} {
		if got := (Matcher{Matcher: c.matcher}).fits(c.tool); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestLoad_AndMerge(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if c, err := Load(d); c != nil || err != nil {
			t.Errorf("%+v, %v", c, err)
		}
		if err := os.MkdirAll(filepath.Join(d, ".openhands"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write := func(d, text string) {
		if err := os.WriteFile(filepath.Join(d, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(dir, `{"stop":[{"hooks":[{"command":"one"}]}]}`)
	write(other, `{"stop":[{"hooks":[{"command":"two"}]}],"session_start":[{"hooks":[{"command":"three"}]}]}`)
	a, errA := Load(dir)
	b, errB := Load(other)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	m := Merge(nil, a, b)
	if list := m.For(Stop, ""); len(list) != 2 || list[0].Command != "one" || list[1].Command != "two" ||
		len(m.For(SessionStart, "")) != 1 {
		t.Errorf("%+v", m)
	}
	if len(a.For(Stop, "")) != 1 || Merge(nil, nil) != nil || (*Config)(nil).For(Stop, "") != nil {
		t.Error("Merge changed its argument")
	}
	write(dir, strings.Repeat(" ", maxFile+1))
	if _, err := Load(dir); err == nil {
		t.Error("a file too large was read")
	}
	if c, err := Load("/nonexistent"); c != nil || err != nil {
		t.Errorf("%+v, %v", c, err)
	}
}
