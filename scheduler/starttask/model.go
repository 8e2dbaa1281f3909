package starttask

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/scheduler/agent"
)

// llm returns what the sandbox gets to reach the model with. It is the one place that says so: every
// member of a request that names a model for an agent takes it from here.
func (in *inputs) llm() agent.LLM {
	llm := agent.LLM{Model: in.model(), UsageID: "agent"}
	if in.gateway != "" {
		llm.BaseURL, llm.APIKey = in.gateway, llmtoken.New(in.key, in.place.sandbox, in.task.ConversationID)
		return llm
	}
	llm.BaseURL, llm.APIKey = deref(in.settings.Values.LLMBaseURL), in.llmAPIKey
	return llm
}

// model is the request's, else the user's.
func (in *inputs) model() string {
	if m := deref(in.task.Request.LLMModel); m != "" {
		return m
	}
	return deref(in.settings.Values.LLMModel)
}

// gateway returns the model gateway's URL for sandboxes, "" where they get their owner's key.
func (r *Runner) gateway(v *fsm.View) string {
	if len(r.cfg.APIURLs) == 0 || !v.Active(fsm.VersionModels) || v.Installation().LLM.Direct {
		return ""
	}
	return agent.GatewayURL(r.cfg.APIURLs[0])
}
