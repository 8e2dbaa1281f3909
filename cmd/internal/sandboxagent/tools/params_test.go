package tools

import (
	"encoding/json"
	"os"
	"reflect"
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

// Models give arguments that there are not. They are left out, and named where one is missing.
func TestParse_LeavesOutWhatIsNoArgument(t *testing.T) {
	t.Parallel()
	c, err := think{}.Parse(`{"thought":"x","mood":"good"}`)
	if err != nil || string(c.Action) != `{"kind":"ThinkAction","thought":"x"}` {
		t.Errorf("%s, %v", c.Action, err)
	}
	if _, err := (think{}).Parse(`{"thougt":"x"}`); err == nil || !strings.Contains(err.Error(), "thought is missing") ||
		!strings.Contains(err.Error(), "no argument thougt") {
		t.Errorf("a misspelled argument: %v", err)
	}
}
