package skills

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// The types of a skill.
const (
	// TypeRepo is always in the prompt.
	TypeRepo = "repo"
	// TypeKnowledge is added when a trigger is in a message.
	TypeKnowledge = "knowledge"
	// TypeAgentSkills is a SKILL.md: its description is in the prompt, and the agent asks for the
	// rest.
	TypeAgentSkills = "agentskills"
)

// maxDescription bounds a description, in characters.
const maxDescription = 1024

// Skill is one skill. Its JSON is the protocol's.
type Skill struct {
	// Name is unique in a catalog.
	Name string `json:"name"`
	Type string `json:"type"`
	// Content is the text without its front matter.
	Content  string   `json:"content"`
	Triggers []string `json:"triggers"`
	// Source is the file's absolute path.
	Source      string  `json:"source"`
	Description *string `json:"description"`
	// AgentSkills says that it is a SKILL.md.
	AgentSkills bool `json:"is_agentskills_format"`
	// DisableModelInvocation says that only a trigger adds it.
	DisableModelInvocation bool     `json:"disable_model_invocation"`
	AllowedTools           []string `json:"allowed_tools"`
}

// instructionFiles are the files that are always in the prompt, by their names in lower case, with
// the names of their skills.
func instructionFiles() map[string]string {
	return map[string]string{
		"agents.md": "agents", "agent.md": "agents", "claude.md": "claude", "gemini.md": "gemini",
		".cursorrules": "cursorrules",
	}
}

// header is the front matter of a file.
type header struct {
	Name          string   `yaml:"name"`
	Description   string   `yaml:"description"`
	Triggers      []string `yaml:"triggers"`
	Inputs        []any    `yaml:"inputs"`
	AllowedTools  any      `yaml:"allowed-tools"`
	AllowedTools2 any      `yaml:"allowed_tools"`
	Disable       bool     `yaml:"disable-model-invocation"`
	Disable2      bool     `yaml:"disable_model_invocation"`
}

// parse reads a file of a directory of skills. name is its path there, source its absolute path.
func parse(name, source string, text []byte) (Skill, error) {
	if !utf8.Valid(text) {
		return Skill{}, fmt.Errorf("%s is not UTF-8", source)
	}
	matter, content := split(text)
	var h header
	if err := yaml.Unmarshal(matter, &h); err != nil {
		return Skill{}, fmt.Errorf("the front matter of %s can't be read: %w", source, err)
	}
	s := Skill{
		Name: strings.TrimSuffix(name, path.Ext(name)), Type: TypeRepo, Content: strings.TrimSpace(string(content)),
		Source:   source,
		Triggers: []string{}, DisableModelInvocation: h.Disable || h.Disable2, AllowedTools: texts(h.AllowedTools),
	}
	if s.AllowedTools == nil {
		s.AllowedTools = texts(h.AllowedTools2)
	}
	if s.AgentSkills = isSkillFile(path.Base(name)); s.AgentSkills {
		s.Name, s.Type = path.Base(path.Dir(source)), TypeAgentSkills
	} else if len(h.Triggers) > 0 || h.Inputs != nil {
		s.Type = TypeKnowledge
	}
	if h.Name != "" {
		s.Name = h.Name
	}
	for _, t := range h.Triggers {
		if t = strings.TrimSpace(t); t != "" {
			s.Triggers = append(s.Triggers, t)
		}
	}
	if own := "/" + s.Name; h.Inputs != nil && !slices.Contains(s.Triggers, own) {
		s.Triggers = append(s.Triggers, own)
	}
	if d := []rune(strings.TrimSpace(h.Description)); len(d) > 0 {
		text := string(d[:min(len(d), maxDescription)])
		s.Description = &text
	}
	return s, nil
}

// texts reads a list of texts, or one text with blanks between.
func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return strings.Fields(v)
	case []any:
		out := make([]string, 0, len(v))
		for _, one := range v {
			out = append(out, fmt.Sprint(one))
		}
		return out
	}
	return nil
}

// split separates the front matter, between two lines of three dashes, from the rest.
func split(text []byte) (matter, content []byte) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	first, rest, ok := bytes.Cut(text, []byte("\n"))
	if !ok || string(bytes.TrimRight(first, " \r")) != "---" {
		return nil, text
	}
	for at := 0; at < len(rest); {
		line, _, _ := bytes.Cut(rest[at:], []byte("\n"))
		if string(bytes.TrimRight(line, " \r")) == "---" {
			return rest[:at], rest[min(at+len(line)+1, len(rest)):]
		}
		at += len(line) + 1
	}
	return nil, text
}

func isSkillFile(name string) bool { return strings.EqualFold(name, "SKILL.md") }
