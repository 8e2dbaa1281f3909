// Package llm is the model gateway of a node. A sandbox sends it requests of the OpenAI, Anthropic or
// Gemini API with a token of its conversation. The gateway adds the owner's key and sends them to
// the owner's endpoint, if the operator allows its host. It counts tokens and costs. Keys never
// enter a sandbox, and prompts are never logged.
package llm
