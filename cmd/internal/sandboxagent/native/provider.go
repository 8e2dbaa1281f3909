package native

import "strings"

// reasons reports whether the model is one of OpenAI's that reason: they refuse a temperature and
// count their thoughts with the output.
func reasons(model string) bool {
	for _, prefix := range []string{"o1", "o3", "o4", "gpt-5", "gpt-6"} {
		if strings.HasPrefix(model, prefix) {
			return true
		}
	}
	return false
}

// wantsReasoning reports whether the model must be shown its own thoughts between tool calls.
func wantsReasoning(model string) bool {
	model = strings.ToLower(model)
	for _, part := range []string{"deepseek-reasoner", "deepseek-v3.2", "deepseek-v4", "kimi-k2", "minimax-m"} {
		if strings.Contains(model, part) {
			return true
		}
	}
	return false
}
