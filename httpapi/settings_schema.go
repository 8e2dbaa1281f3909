package httpapi

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// schemaBody describes settings to clients that show a form of them. It has what is honoured.
type schemaBody struct {
	ModelName string          `json:"model_name"`
	Sections  []schemaSection `json:"sections"`
}

type schemaSection struct {
	Key     string        `json:"key"`
	Label   string        `json:"label"`
	Fields  []schemaField `json:"fields"`
	Variant *string       `json:"variant"`
}

type schemaField struct {
	Key          string         `json:"key"`
	Label        string         `json:"label"`
	Description  *string        `json:"description"`
	Section      string         `json:"section"`
	SectionLabel string         `json:"section_label"`
	ValueType    string         `json:"value_type"`
	Default      any            `json:"default"`
	Prominence   string         `json:"prominence"`
	DependsOn    []string       `json:"depends_on"`
	Secret       bool           `json:"secret"`
	Choices      []schemaChoice `json:"choices"`
	Variant      *string        `json:"variant"`
}

type schemaChoice struct {
	Value string `json:"value"`
	Label string `json:"label"`
}

// showsSchema handles GET of a schema.
func showsSchema(schema func() schemaBody) handler {
	return func(_ *Server, c *call) (response.Response, error) {
		if err := c.Check(); err != nil {
			return response.Response{}, err
		}
		if _, err := c.View(); err != nil {
			return response.Response{}, err
		}
		return response.OK(schema())
	}
}

// newSection fills in what the fields of a section share.
func newSection(key, label, variant string, fields ...schemaField) schemaSection {
	s := schemaSection{Key: key, Label: label, Fields: fields}
	if variant != "" {
		s.Variant = &variant
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		f.Section, f.SectionLabel, f.Variant = key, label, s.Variant
		if f.DependsOn == nil {
			f.DependsOn = []string{}
		}
		if f.Choices == nil {
			f.Choices = []schemaChoice{}
		}
	}
	return s
}

// agentSchema describes agent_settings.
func agentSchema() schemaBody {
	return schemaBody{ModelName: "AgentSettings", Sections: []schemaSection{
		newSection("llm", "LLM", fsm.AgentOpenHands,
			schemaField{Key: "llm.model", Label: "Model", ValueType: "string", Prominence: "critical"},
			schemaField{Key: "llm.api_key", Label: "API Key", ValueType: "string", Prominence: "critical", Secret: true},
			schemaField{Key: "llm.base_url", Label: "Base URL", ValueType: "string", Prominence: "critical"}),
		newSection("condenser", "Condenser", fsm.AgentOpenHands,
			schemaField{Key: "condenser.enabled", Label: "Enable memory condensation", ValueType: "boolean", Default: true,
				Prominence: "critical"},
			schemaField{Key: "condenser.max_size", Label: "Max size", ValueType: "integer", Prominence: "minor",
				DependsOn: []string{"condenser.enabled"}}),
		newSection("acp", "ACP", fsm.AgentACP,
			schemaField{Key: "acp_server", Label: "Agent", ValueType: "string", Prominence: "critical"},
			schemaField{Key: "acp_model", Label: "Model", ValueType: "string", Prominence: "major"},
			schemaField{Key: "acp_command", Label: "Command", ValueType: "array", Prominence: "minor"}),
	}}
}

// conversationSchema describes conversation_settings.
func conversationSchema() schemaBody {
	return schemaBody{ModelName: "ConversationSettings", Sections: []schemaSection{
		newSection("general", "General", "",
			schemaField{Key: "max_iterations", Label: "Max iterations", ValueType: "integer", Default: defaultMaxIterations,
				Prominence: "major"}),
		newSection("verification", "Verification", "",
			schemaField{Key: "confirmation_mode", Label: "Confirmation mode", ValueType: "boolean", Default: false,
				Prominence: "major"},
			schemaField{Key: "security_analyzer", Label: "Security analyzer", ValueType: "string", Prominence: "major",
				DependsOn: []string{"confirmation_mode"},
				Choices:   []schemaChoice{{"llm", "LLM"}, {"none", "None"}}}),
	}}
}
