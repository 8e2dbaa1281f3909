package agentserver

import (
	"net/http"
	"slices"

	"bivouac.dev/bivouac/scheduler/agent"
)

// route is a row of the route table: a request, who serves it, and what it needs.
type route struct {
	method string
	// path is a pattern of net/http without the method.
	path string
	// open routes need no key. A WebSocket asks for it after the upgrade.
	open bool
	// idle routes are no activity: what the control plane monitors must not keep an unused sandbox
	// awake.
	idle bool
	// asTools routes use files with the permissions of the tools' user.
	asTools bool
	// body bounds the request's body, in bytes; 0 is maxBody.
	body   int64
	handle http.HandlerFunc
}

// table is the route table of the whole API. The router and the tests use it.
func (s *Server) table() []route {
	return slices.Concat(s.openRoutes(), s.conversationRoutes(), s.agentRoutes(), s.eventRoutes(), s.bashRoutes(),
		s.fileRoutes(), s.toolRoutes())
}

// openRoutes are the routes without a key, and the WebSockets.
func (s *Server) openRoutes() []route {
	const get = http.MethodGet
	return []route{
		{method: get, path: "/health", open: true, idle: true, handle: s.handleHealth},
		{method: get, path: "/alive", open: true, idle: true, handle: s.handleHealth},
		{method: get, path: "/ready", open: true, idle: true, handle: s.handleReady},
		{method: get, path: "/server_info", open: true, idle: true, handle: s.handleServerInfo},
		{method: get, path: "/{$}", open: true, idle: true, handle: s.handleServerInfo},
		{method: get, path: agent.ProofPath, open: true, idle: true, handle: s.handleProof},
		{method: get, path: "/sockets/events/{id}", open: true, handle: s.api.HandleEventSocket},
		{method: get, path: "/sockets/bash-events", open: true, handle: s.bash.HandleSocket},
	}
}

// conversationRoutes are the routes of conversations and their runs.
func (s *Server) conversationRoutes() []route {
	const del, get, patch, post = http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost
	const conv = "/api/conversations"
	return []route{
		{method: post, path: conv, handle: s.api.HandleCreate},
		{method: get, path: conv, idle: true, handle: s.api.HandleBatch},
		{method: get, path: conv + "/search", idle: true, handle: s.api.HandleSearch},
		{method: get, path: conv + "/count", idle: true, handle: s.api.HandleCount},
		{method: post, path: conv + "/prepare-for-sandbox-pause", idle: true, handle: s.api.HandlePreparePause},
		{method: get, path: conv + "/{id}", idle: true, handle: s.api.HandleGet},
		{method: patch, path: conv + "/{id}", handle: s.api.HandlePatch},
		{method: del, path: conv + "/{id}", handle: s.api.HandleDelete},
		{method: post, path: conv + "/{id}/run", handle: s.api.HandleRun},
		{method: post, path: conv + "/{id}/pause", handle: s.api.HandlePause},
		{method: post, path: conv + "/{id}/interrupt", handle: s.api.HandleInterrupt},
		{method: post, path: conv + "/{id}/fork", handle: s.api.HandleFork},
	}
}

// agentRoutes are the routes of what a conversation's agent is and can do.
func (s *Server) agentRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	const conv = "/api/conversations"
	return []route{
		{method: post, path: conv + "/{id}/confirmation_policy", handle: s.api.HandlePolicy},
		{method: post, path: conv + "/{id}/security_analyzer", handle: s.api.HandleAnalyzer},
		{method: post, path: conv + "/{id}/secrets", handle: s.api.HandleSecrets},
		{method: post, path: conv + "/{id}/switch_llm", handle: s.api.HandleSwitchLLM},
		{method: post, path: conv + "/{id}/switch_acp_model", handle: s.api.HandleSwitchACPModel},
		{method: post, path: conv + "/{id}/switch_profile", handle: s.api.Unsupported("profile_name", http.StatusNotFound,
			"Profile not found: this server keeps none, use switch_llm")},
		{method: post, path: conv + "/{id}/load_plugin", handle: s.api.Unsupported("plugin_ref", http.StatusNotFound,
			"Plugin not found: this server has no marketplaces")},
		{method: post, path: conv + "/{id}/goal", handle: s.api.HandleGoal},
		{method: post, path: conv + "/{id}/goal/stop", handle: s.api.HandleGoalStop},
		{method: post, path: conv + "/{id}/goal/resume", handle: s.api.HandleGoalResume},
		{method: post, path: conv + "/{id}/navigate", handle: s.api.HandleNavigate},
		{method: post, path: conv + "/{id}/ask_agent", handle: s.api.HandleAsk},
		{method: post, path: conv + "/{id}/generate_title", handle: s.api.HandleTitle},
		{method: post, path: conv + "/{id}/condense", handle: s.api.HandleCondense},
		{method: get, path: conv + "/{id}/agent_final_response", idle: true, handle: s.api.HandleFinalResponse},
	}
}

// eventRoutes are the routes of a conversation's events.
func (s *Server) eventRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	const conv = "/api/conversations"
	return []route{
		{method: post, path: conv + "/{id}/events/respond_to_confirmation", handle: s.api.HandleRespond},
		{method: post, path: conv + "/{id}/events", handle: s.api.HandleEventAdd},
		{method: get, path: conv + "/{id}/events", idle: true, handle: s.api.HandleEventBatch},
		{method: get, path: conv + "/{id}/events/search", idle: true, handle: s.api.HandleEventSearch},
		{method: get, path: conv + "/{id}/events/count", idle: true, handle: s.api.HandleEventCount},
		{method: get, path: conv + "/{id}/events/{event}", idle: true, handle: s.api.HandleEventGet},
	}
}

// bashRoutes are the routes of shell commands.
func (s *Server) bashRoutes() []route {
	const del, get, post = http.MethodDelete, http.MethodGet, http.MethodPost
	return []route{
		{method: post, path: "/api/bash/start_bash_command", handle: s.bash.HandleStart},
		{method: post, path: "/api/bash/execute_bash_command", handle: s.bash.HandleExecute},
		{method: get, path: "/api/bash/bash_events/search", handle: s.bash.HandleSearch},
		{method: get, path: "/api/bash/bash_events/{event}", handle: s.bash.HandleEventGet},
		{method: get, path: "/api/bash/bash_events/{$}", handle: s.bash.HandleEventBatch},
		{method: del, path: "/api/bash/bash_events", handle: s.bash.HandleEventsDelete},
	}
}

// fileRoutes are the routes of the workspace's files and git repositories.
func (s *Server) fileRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{method: post, path: "/api/file/upload", asTools: true, body: maxUpload, handle: s.files.HandleUpload},
		{method: get, path: "/api/file/download", asTools: true, handle: s.files.HandleDownload},
		{method: post, path: "/api/file/create_directory", asTools: true, handle: s.files.HandleCreateDirectory},
		{method: get, path: "/api/file/home", asTools: true, handle: s.files.HandleHome},
		{method: get, path: "/api/file/search_subdirs", asTools: true, handle: s.files.HandleSearchSubdirs},
		{method: get, path: "/api/file/archive", handle: s.files.HandleArchive},
		{method: get, path: "/api/file/download-trajectory/{id}", handle: s.api.HandleTrajectory},
		{method: get, path: "/api/git/changes", asTools: true, handle: s.git.HandleChanges},
		{method: get, path: "/api/git/diff", asTools: true, handle: s.git.HandleDiff},
		{method: get, path: "/api/git/commits", asTools: true, handle: s.git.HandleCommits},
		{method: get, path: "/api/git/commits/{sha}/changes", asTools: true, handle: s.git.HandleCommitChanges},
	}
}

// toolRoutes are the routes of skills, hooks, tools and the editors that this server has not.
func (s *Server) toolRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{method: post, path: "/api/skills", asTools: true, handle: s.handleSkills},
		{method: post, path: "/api/skills/sync", handle: s.handleSkillsSync},
		{method: post, path: "/api/hooks", asTools: true, handle: s.handleHooks},
		{method: get, path: "/api/tools", handle: s.handleTools},
		{method: get, path: "/api/tools/{$}", handle: s.handleTools},
		{method: get, path: "/api/vscode/url", handle: s.handleVSCodeURL},
		{method: get, path: "/api/vscode/status", handle: s.handleVSCodeStatus},
		{method: get, path: "/api/desktop/url", handle: s.handleDesktopURL},
	}
}
