package preset

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestAll_Checks: what a preset says passes the rules of specs.
func TestAll_Checks(t *testing.T) {
	t.Parallel()
	for _, p := range All() {
		texts := slices.Concat([]string{p.Command, p.SessionMode}, p.Args, slices.Collect(maps.Values(p.Env)))
		if err := CheckAgent(p.ID, "", texts); err != nil {
			t.Error(err)
		}
		if !strings.Contains(IDs(), p.ID) {
			t.Errorf("%s is not listed", p.ID)
		}
	}
}

// TestCheckAgent: a misspelled placeholder would reach the agent as it is.
func TestCheckAgent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"--model={{llm_model}}": "", "{{ask?a:b}}": "", `{"a":{"b":{}}}`: "", "{": "",
		"{{llm-model}}": `there is no placeholder {{llm-model}}: there are ask?yes:no, data_dir`,
		"{{LLM_MODEL}}": "no placeholder", "{{ llm_model }}": "no placeholder", "{{ask?a}}": "no placeholder",
		"x{{}}": "no placeholder",
	} {
		err := CheckAgent("mine", "agent", []string{text})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := CheckAgent("mine", "", nil); err == nil ||
		!strings.Contains(err.Error(), "only opencode, codex, claude-code") {
		t.Errorf("an unknown id without a command: %v", err)
	}
	if err := CheckAgent("codex", "", nil); err != nil {
		t.Error(err)
	}
}
