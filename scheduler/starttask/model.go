package starttask

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llmtoken"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// llm returns what the sandbox gets to reach the model with. It is the one place that says so: every
// member of a request that names a model for an agent takes it from here.
func (in *inputs) llm() agent.LLM {
	llm := agent.LLM{
		Model: in.model(), API: preset.APIOf(in.model(), in.endpoint().BaseURL).Named(), UsageID: "agent",
		ModelSettings: in.said,
	}
	if in.gateway != "" {
		llm.BaseURL, llm.APIKey = in.gateway, llmtoken.New(in.key, in.place.sandbox, in.task.ConversationID)
		return llm
	}
	llm.BaseURL, llm.APIKey = in.endpoint().BaseURL, in.llmAPIKey
	return llm
}

// endpoint is where the conversation goes.
func (in *inputs) endpoint() fsm.ModelEndpoint {
	return in.settings.EndpointOf(in.task.LLM, in.task.Request.LLMModel)
}

// model is the request's, else the user's.
func (in *inputs) model() string { return in.endpoint().Model }

// gateway returns the model gateway's URL for sandboxes, "" where they get their owner's key.
func (r *Runner) gateway(v *fsm.View) string {
	if len(r.cfg.APIURLs) == 0 || !v.Active(fsm.VersionModels) || v.Installation().LLM.Direct {
		return ""
	}
	return agent.GatewayURL(r.cfg.APIURLs[0])
}
