package native

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// speak stores a message as the server does, with what the engine adds to it.
func (r *rig) speak(text string) *event.Message {
	r.t.Helper()
	m := userMessage(event.SourceUser, text)
	if err := r.memory.Append(append(r.Augment(m), m)...); err != nil {
		r.t.Fatal(err)
	}
	return m
}

// Instructions are in the system prompt, triggered skills in the message, rules of a directory in the
// result of the first action there, and other skills on demand; each once, after a restart too.
func TestSkills_ReachTheModel(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	write(t, home,
		map[string]string{
			".agents/skills/greet/SKILL.md": "---\nname: greet\ndescription: How to greet\n---\nSay ahoy with hush-hush.",
		})
	write(t, dir, map[string]string{
		"AGENTS.md":                      "Tests run with make check.",
		".openhands/skills/deploy.md":    "---\nname: deploy\ntriggers: [rollout]\n---\nDeploy on Mondays.",
		".openhands/skills/from-disk.md": "---\nname: shared\n---\nfrom the disk",
		"web/AGENTS.md":                  "Two spaces here.",
		"web/a.txt":                      "a",
		"web/b.txt":                      "b",
	})
	request, err := json.Marshal([]map[string]any{
		{"name": "shared", "type": "repo", "content": "from the request"},
		{"name": "requested", "type": "repo", "content": "Only in the request."},
		{"name": "odd", "type": "sorcery", "content": "abracadabra"},
	})
	if err != nil {
		t.Fatal(err)
	}
	view := func(name string) modeltest.Call {
		return modeltest.Tool("file_editor", map[string]string{"command": "view", "path": filepath.Join(dir, name)})
	}
	r := newRig(t, &modeltest.Script{Stories: []*modeltest.Story{{Answers: []modeltest.Answer{
		{Calls: []modeltest.Call{view("web/a.txt")}},
		{Calls: []modeltest.Call{view("web/b.txt")}},
		{Calls: []modeltest.Call{modeltest.Tool("invoke_skill", map[string]string{"name": "greet"})}},
		{Calls: []modeltest.Call{modeltest.Tool("invoke_skill", map[string]string{"name": "nothing"})}},
		{Text: "Done."}, {Text: "Done again."},
	}}}}, func(s *engine.Setup) {
		s.WorkingDir, s.Environ = dir, append(os.Environ(), "HOME="+home)
		s.Secrets = map[string]engine.Secret{"TOKEN": {Value: "hush-hush"}}
		mustDecode(t, request, &s.Agent.Skills)
	})
	m := r.speak("Do the rollout, please")
	if len(m.ActivatedSkills) != 1 || m.ActivatedSkills[0] != "deploy" ||
		!strings.Contains(m.ExtendedContent[0].Text, "Deploy on Mondays.") {
		t.Errorf("the message is %+v", m)
	}
	r.ends(engine.Finished)
	context := all[*event.SystemPrompt](r)[0].DynamicContext.Text
	for _, part := range []string{
		"Tests run with make check.",
		"<name>greet</name>",
		"How to greet",
		"from the disk",
		"Only in the request.",
	} {
		if !strings.Contains(context, part) {
			t.Errorf("the system prompt lacks %q", part)
		}
	}
	for _, part := range []string{"Say ahoy", "from the request", "abracadabra", "Two spaces here."} {
		if strings.Contains(context, part) {
			t.Errorf("the system prompt has %q", part)
		}
	}
	results := all[*event.Observation](r)
	if len(results[0].ExtendedContent) != 1 || !strings.Contains(results[0].ExtendedContent[0].Text, "Two spaces here.") ||
		len(results[1].ExtendedContent) != 0 {
		t.Errorf("the rules of the directory are in %+v and %+v", results[0].ExtendedContent, results[1].ExtendedContent)
	}
	if text := observed(results[2]); !strings.Contains(text, "Say ahoy with <secret-hidden>.") ||
		!strings.Contains(text, "SKILL.md") {
		t.Errorf("the skill is %q", text)
	}
	if text := observed(results[3]); !strings.Contains(text,
		`There is no skill "nothing". The skills are: deploy, greet.`) {
		t.Errorf("an unknown skill gives %q", text)
	}
	requests := r.server.Requests()
	if first := requests[0].Messages; !strings.Contains(first[len(first)-1].Text, "Deploy on Mondays.") {
		t.Errorf("the model does not see the skill: %+v", first[len(first)-1])
	}
	var activated, rules []string
	mustDecode(t, r.memory.State(engine.KeyActivatedSkills), &activated)
	mustDecode(t, r.memory.State(engine.KeyActivatedPathRules), &rules)
	if len(activated) != 1 || len(rules) != 1 || rules[0] != "web/AGENTS.md" {
		t.Errorf("the state has the skills %q and the rules %q", activated, rules)
	}
	r.restart()
	if again := r.speak("Another rollout"); len(again.ActivatedSkills)+len(again.ExtendedContent) > 0 {
		t.Errorf("the skill is added again: %+v", again)
	}
	r.ends(engine.Finished)
}
