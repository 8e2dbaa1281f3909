package skills

import (
	"encoding/xml"
	"path/filepath"
	"slices"
	"strings"
)

// Match is a skill that is added to a message or an observation.
type Match struct {
	// Name is remembered, so that the skill is added once.
	Name string
	// Text is for the model.
	Text string
}

// Prompt returns the dynamic context of a system prompt: the texts that always apply, and the names
// and descriptions of the other skills. It is empty without skills.
func (c *Catalog) Prompt() string {
	var always, listed strings.Builder
	for _, s := range c.Skills() {
		switch {
		case s.Type == TypeRepo && s.Content != "":
			always.WriteString("\n[BEGIN context from [" + s.Name + "]]\n" + s.Content + "\n[END Context]\n")
		case s.Type != TypeRepo && !s.DisableModelInvocation:
			listed.WriteString("  <skill>\n    <name>" + escape(s.Name) + "</name>\n    <description>" + escape(describe(s)) +
				"</description>\n    <location>" + escape(s.Source) + "</location>\n  </skill>\n")
		}
	}
	var out []string
	if always.Len() > 0 {
		out = append(out, "<REPO_CONTEXT>\nThe following information has been included based on several files "+
			"defined in user's repository.\n"+
			"Please follow them while working.\n"+always.String()+"</REPO_CONTEXT>")
	}
	if listed.Len() > 0 {
		out = append(out, "<SKILLS>\nThe following skills are available. Some are added to a message by a keyword in "+
			"it; those with a SKILL.md\n"+
			"are read on demand.\n\n<available_skills>\n"+listed.String()+"</available_skills>\n</SKILLS>")
	}
	return strings.Join(out, "\n\n")
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}

// describe is a skill's description, or the first line of its text.
func describe(s Skill) string {
	if s.Description != nil {
		return *s.Description
	}
	for line := range strings.Lines(s.Content) {
		if line = strings.TrimSpace(strings.TrimLeft(line, "# ")); line != "" {
			r := []rune(line)
			return string(r[:min(len(r), maxDescription)])
		}
	}
	return ""
}

// Triggered returns the skills with a trigger in a user's text, without those already added. A
// trigger is a whole word, in any case: git is not in github.
func (c *Catalog) Triggered(text string, already []string) []Match {
	text = strings.ToLower(text)
	var out []Match
	for _, s := range c.Skills() {
		if slices.Contains(already, s.Name) {
			continue
		}
		for _, t := range s.Triggers {
			if hasWord(text, strings.ToLower(t)) {
				out = append(out, Match{s.Name,
					"<EXTRA_INFO>\nThe following information has been included based on a keyword match for \"" + t +
						"\".\nIt may or may not be relevant to the user's request.\nSkill location: " + s.Source +
						"\n(Use this path to resolve relative file references in " +
						"the skill content below)\n\n" + s.Content + "\n</EXTRA_INFO>"})
				break
			}
		}
	}
	return out
}

// hasWord reports whether word stands in text with no letter or digit beside it.
func hasWord(text, word string) bool {
	for at := 0; word != ""; {
		i := strings.Index(text[at:], word)
		if i < 0 {
			return false
		}
		begin, end := at+i, at+i+len(word)
		if (begin == 0 || !isWordByte(text[begin-1])) && (end == len(text) || !isWordByte(text[end])) {
			return true
		}
		at = begin + 1
	}
	return false
}

func isWordByte(b byte) bool { return b >= 'a' && b <= 'z' || b >= '0' && b <= '9' }

// maxDepth bounds the directories between the working directory and a touched file.
const maxDepth = 32

// ForPath returns the instruction files of the directories between the working directory and a file
// that the agent touches, outermost first, without those already added. Their names are paths
// relative to the working directory. It reads the files when it is called.
func (c *Catalog) ForPath(file string, already []string) []Match {
	if c.dir == "" {
		return nil
	}
	below, err := filepath.Rel(c.dir, file)
	if err != nil || !filepath.IsLocal(below) {
		return nil
	}
	var out []Match
	dir := c.dir
	parts := strings.Split(filepath.Dir(below), string(filepath.Separator))
	for _, part := range parts[:min(len(parts), maxDepth)] {
		if part == "." {
			continue
		}
		dir = filepath.Join(dir, part)
		list, _ := instructionsIn(dir) // what can't be read gives no rule
		for _, s := range list {
			name, err := filepath.Rel(c.dir, s.Source)
			if err != nil || slices.Contains(already, name) || s.Content == "" {
				continue
			}
			out = append(out, Match{name,
				"<EXTRA_INFO>\nThe following information has been included because you work below " + dir +
					".\nPlease follow it there.\nLocation: " + s.Source + "\n\n" + s.Content + "\n</EXTRA_INFO>"})
		}
	}
	return out
}
