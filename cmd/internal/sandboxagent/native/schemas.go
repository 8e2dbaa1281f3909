package native

import (
	"encoding/json"

	openai "github.com/sashabaranov/go-openai"
)

// plainTools returns tools whose schemas have what every dialect of schemas has: types, descriptions,
// properties, the required ones, items and enums. An MCP server's schema may have more.
func plainTools(tools []openai.Tool) []openai.Tool {
	out := make([]openai.Tool, len(tools))
	for i, t := range tools {
		f := *t.Function
		var schema map[string]any
		if raw, err := json.Marshal(f.Parameters); err == nil && json.Unmarshal(raw, &schema) == nil && schema != nil {
			f.Parameters = plainSchema(schema)
		}
		out[i] = openai.Tool{Type: t.Type, Function: &f}
	}
	return out
}

func plainSchema(s map[string]any) map[string]any {
	for _, name := range []string{"anyOf", "oneOf", "allOf"} {
		list, _ := s[name].([]any)
		for _, one := range list {
			if option, is := one.(map[string]any); is && option["type"] != "null" && s["type"] == nil {
				merged := map[string]any{"description": s["description"]}
				for key, value := range option {
					merged[key] = value
				}
				return plainSchema(merged)
			}
		}
	}
	out := map[string]any{}
	kind := s["type"]
	if many, is := kind.([]any); is {
		for _, one := range many {
			if kind = one; one != "null" {
				break
			}
		}
	}
	properties, _ := s["properties"].(map[string]any)
	switch {
	case kind != nil:
		out["type"] = kind
	case properties != nil:
		out["type"] = "object"
	default:
		out["type"] = "string"
	}
	if text, is := s["description"].(string); is {
		out["description"] = text
	}
	for _, name := range []string{"required", "enum"} {
		if list, is := s[name].([]any); is {
			out[name] = list
		}
	}
	if value, is := s["const"].(string); is {
		out["enum"] = []any{value}
	}
	if items, is := s["items"].(map[string]any); is {
		out["items"] = plainSchema(items)
	} else if kind == "array" {
		out["items"] = map[string]any{"type": "string"}
	}
	if properties != nil {
		plain := map[string]any{}
		for name, one := range properties {
			member, _ := one.(map[string]any) // true allows anything
			plain[name] = plainSchema(member)
		}
		out["properties"] = plain
	}
	return out
}
