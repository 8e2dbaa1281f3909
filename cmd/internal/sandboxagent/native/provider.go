package native

import "strings"

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
