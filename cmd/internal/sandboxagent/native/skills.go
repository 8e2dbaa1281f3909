package native

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/skills"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// maxSkillText bounds what skills add to the system prompt, in bytes.
const maxSkillText = 256 << 10

// loadSkills reads the skills of the project and of the user, and adds those of the create request.
func loadSkills(s engine.Setup) *skills.Catalog {
	o := skills.Options{}
	if filepath.IsAbs(s.WorkingDir) {
		o.WorkingDir = s.WorkingDir
	}
	for _, kv := range s.Environ {
		if home, ok := strings.CutPrefix(kv, "HOME="); ok && filepath.IsAbs(home) {
			o.Home = home
		}
	}
	var more []skills.Skill
	for _, raw := range s.Agent.Skills {
		var one skills.Skill
		if json.Unmarshal(raw, &one) == nil {
			more = append(more, one)
		}
	}
	var c *skills.Catalog
	if err := credential.Do(s.Credential, func() error { c = skills.Load(o); return nil }); err != nil {
		c = skills.Load(skills.Options{}) // no thread can become the tools' user: nothing is read
	}
	return c.With(more)
}

// catalog returns the conversation's skills. They are read once for an engine.
func (e *Engine) catalog() *skills.Catalog {
	e.skillsOnce.Do(func() {
		e.skills = loadSkills(e.setup)
		for _, f := range e.skills.Failures() {
			e.log.Warn("a skill was left out", "path", f.Path, "error", f.Err)
		}
	})
	return e.skills
}

// skillsPrompt is what the system prompt says of the skills.
func (e *Engine) skillsPrompt() string {
	text := e.catalog().Prompt()
	if len(text) > maxSkillText {
		text = strings.ToValidUTF8(text[:maxSkillText], "") + "\n[The rest of the skills was left out: they are too long.]"
	}
	return text
}

// Augment implements engine.Augmenter: skills with a trigger in the message are added to it, each
// once in a conversation.
func (e *Engine) Augment(m *event.Message) []event.Event {
	already := e.names(engine.KeyActivatedSkills)
	found := e.catalog().Triggered(m.LLMMessage.Text(), already)
	if len(found) == 0 {
		return nil
	}
	for _, s := range found {
		m.ExtendedContent = append(m.ExtendedContent, event.NewText(s.Text))
		m.ActivatedSkills = append(m.ActivatedSkills, s.Name)
		already = append(already, s.Name)
	}
	return []event.Event{engine.Update(engine.KeyActivatedSkills, already)}
}

// rules adds to an observation the instruction files of the directories that the action's file is
// in, each once in a conversation. It returns the state update that belongs to it.
func (e *Engine) rules(a *event.Action, o *event.Observation) []event.Event {
	if a.ToolName != tools.FileEditorName && a.ToolName != tools.PlanEditorName {
		return nil
	}
	var touched struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(a.Action, &touched) != nil || touched.Path == "" {
		return nil
	}
	already := e.names(engine.KeyActivatedPathRules)
	var found []skills.Match
	err := credential.Do(e.setup.Credential, func() error {
		found = e.catalog().ForPath(filepath.Clean(touched.Path), already)
		return nil
	})
	if err != nil {
		return nil
	}
	if len(found) == 0 {
		return nil
	}
	for _, r := range found {
		o.ExtendedContent = append(o.ExtendedContent, event.NewText(r.Text))
		already = append(already, r.Name)
	}
	return []event.Event{engine.Update(engine.KeyActivatedPathRules, already)}
}

// names reads a list of names of the state.
func (e *Engine) names(key string) []string {
	var list []string
	if raw := e.conv.State(key); len(raw) > 0 && json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return slices.Clip(list)
}
