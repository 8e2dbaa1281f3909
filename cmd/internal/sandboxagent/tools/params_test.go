package tools

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestDefinitions_Parameters compares the schemas that a model sees with testdata/parameters.json: a
// model's habits depend on each word.
func TestDefinitions_Parameters(t *testing.T) {
	text, err := os.ReadFile("testdata/parameters.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	s := Open(Config{WorkingDir: t.TempDir()})
	defer s.Close()
	for _, tool := range s.Tools() {
		d := tool.Definition()
		var got any
		if err := json.Unmarshal(d.Parameters, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want[d.Name]) {
			t.Errorf("%s takes\n%s, want\n%v", d.Name, d.Parameters, want[d.Name])
		}
		delete(want, d.Name)
	}
	if len(want) > 0 {
		t.Errorf("there is no tool for %v", want)
	}
}

// An argument that says where a command runs is not left out: it would run elsewhere.
func TestParse_RefusesWhatDecides(t *testing.T) {
	t.Parallel()
	tool := toolOf(t, t.TempDir(), TerminalName)
	for _, name := range []string{"cwd", "workdir", "working_dir", "workingDirectory", "env", "dry-run"} {
		_, err := tool.Parse(`{"command":"rm -rf build","` + name + `":"/tmp/x"}`)
		if err == nil || !strings.Contains(err.Error(), "there is no argument "+name) ||
			!strings.Contains(err.Error(), "command, is_input, timeout, reset") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Models give arguments that there are not. They are left out, and named where one is missing.
func TestParse_LeavesOutWhatIsNoArgument(t *testing.T) {
	t.Parallel()
	c, err := think{}.Parse(`{"thought":"x","mood":"good"}`)
	if err != nil || string(c.Action) != `{"kind":"ThinkAction","thought":"x"}` {
		t.Errorf("%s, %v", c.Action, err)
	}
	if !slices.Equal(c.Ignored, []string{"mood"}) {
		t.Errorf("ignored: %q", c.Ignored)
	}
	if _, err := (think{}).Parse(`{"thougt":"x"}`); err == nil || !strings.Contains(err.Error(), "thought is missing") ||
		!strings.Contains(err.Error(), "no argument thougt") {
		t.Errorf("a misspelled argument: %v", err)
	}
}
