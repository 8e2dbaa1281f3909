package skills

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

// InvokeName is the name of the tool that reads a skill.
const InvokeName = "invoke_skill"

const invokeObservation = "InvokeSkillObservation"

// Tool returns the tool that gives a model the text of a skill of the catalog, nil if there is none
// that a model may ask for. mask hides secrets in the text.
func (c *Catalog) Tool(mask func(string) string) tools.Tool {
	list := slices.DeleteFunc(c.Skills(), func(s Skill) bool { return s.Type == TypeRepo || s.DisableModelInvocation })
	if len(list) == 0 {
		return nil
	}
	return invoke{list, mask}
}

// invoke implements tools.Tool.
type invoke struct {
	skills []Skill
	mask   func(string) string
}

// Definition implements tools.Tool.
func (t invoke) Definition() tools.Definition {
	return tools.Definition{
		Name: InvokeName, Title: InvokeName, Kind: "InvokeSkillTool", ActionType: "InvokeSkillAction",
		ObservationType: invokeObservation,
		Description: "Read the instructions of one of the available skills. " +
			"Use it before you begin work that the skill's description is about.",
		Parameters:  tools.Parameters(tools.SchemaOf[invokeAction]()),
		Annotations: &event.ToolAnnotations{Title: InvokeName, ReadOnlyHint: true, IdempotentHint: true},
	}
}

type invokeAction struct {
	Kind string `json:"kind" tool:"-"`
	Name string `json:"name" tool:"required" jsonschema:"The skill's name."`
}

// Parse implements tools.Tool.
func (t invoke) Parse(arguments string) (tools.Call, error) {
	args, call, err := tools.Split(arguments)
	if err != nil {
		return call, err
	}
	var name string
	if json.Unmarshal(args["name"], &name) != nil || name == "" || len(args) != 1 {
		return call, fmt.Errorf("%s needs the argument name, a text, and no other", InvokeName)
	}
	call.Action, err = json.Marshal(invokeAction{"InvokeSkillAction", name})
	return call, err
}

// Run implements tools.Tool.
func (t invoke) Run(_ context.Context, action json.RawMessage) tools.Observation {
	var a invokeAction
	o := tools.Observation{Kind: invokeObservation, IsError: true, Members: map[string]any{"skill_name": ""}}
	if err := json.Unmarshal(action, &a); err != nil {
		o.Content = []event.Content{event.TextContent("The action can't be read.")}
		return o
	}
	o.Members["skill_name"] = a.Name
	var names []string
	for _, s := range t.skills {
		if s.Name == a.Name {
			o.IsError = false
			o.Content = []event.Content{event.TextContent(t.mask("Skill location: " + s.Source + "\n" +
				"(Use this path to resolve relative file references in the skill content below)\n\n" + s.Content))}
			return o
		}
		names = append(names, s.Name)
	}
	o.Content = []event.Content{
		event.TextContent(fmt.Sprintf("There is no skill %q. The skills are: %s.", a.Name, strings.Join(names, ", "))),
	}
	return o
}
