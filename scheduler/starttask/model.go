package starttask

import "bivouac.dev/bivouac/scheduler/agent"

// llm returns what the sandbox gets to reach the model with. It is the one place that says so: every
// member of a request that names a model for an agent takes it from here.
func (in *inputs) llm() agent.LLM {
	return agent.LLM{Model: in.model(), APIKey: in.llmAPIKey, BaseURL: deref(in.settings.Values.LLMBaseURL), UsageID: "agent"}
}

// model is the request's, else the user's.
func (in *inputs) model() string {
	if m := deref(in.task.Request.LLMModel); m != "" {
		return m
	}
	return deref(in.settings.Values.LLMModel)
}
