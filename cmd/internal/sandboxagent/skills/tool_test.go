package skills

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

// TestTool_Parameters compares the schema that a model sees with that of the tool think, which differs
// in its one argument alone.
func TestTool_Parameters(t *testing.T) {
	text, err := os.ReadFile("../tools/testdata/parameters.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	want := all["think"]
	properties := want["properties"].(map[string]any)
	delete(properties, "thought")
	properties["name"] = map[string]any{"type": "string", "description": "The skill's name."}
	want["required"] = []any{"name"}
	var got map[string]any
	if err := json.Unmarshal(invoke{}.Definition().Parameters, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("it takes\n%v, want\n%v", got, want)
	}
}
