package agentserver

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/scheduler/agent"
)

type route struct {
	method, pattern string
	handle          http.HandlerFunc
}

// table lists every route. A pattern is net/http's without the method.
func (s *Server) table() []route {
	return append(s.conversationTable(), []route{
		{"GET", "/health", s.handleHealth},
		{"GET", "/alive", s.handleHealth},
		{"GET", "/ready", s.handleReady},
		{"GET", "/server_info", s.handleServerInfo},
		{"GET", "/{$}", s.handleServerInfo},
		{"GET", agent.ProofPath, s.handleProof},

		{"GET", "/sockets/events/{id}", s.handleEventSocket},
		{"GET", "/sockets/bash-events", s.handleBashSocket},

		{"POST", "/api/bash/start_bash_command", s.handleBashStart},
		{"POST", "/api/bash/execute_bash_command", s.handleBashExecute},
		{"GET", "/api/bash/bash_events/search", s.handleBashSearch},
		{"GET", "/api/bash/bash_events/{event}", s.handleBashEventGet},
		{"GET", "/api/bash/bash_events/{$}", s.handleBashEventBatch},
		{"DELETE", "/api/bash/bash_events", s.handleBashEventsDelete},
		{"POST", "/api/file/upload", s.asTools(s.handleFileUpload)},
		{"GET", "/api/file/download", s.asTools(s.handleFileDownload)},
		{"POST", "/api/file/create_directory", s.asTools(s.handleCreateDirectory)},
		{"GET", "/api/file/home", s.asTools(s.handleFileHome)},
		{"GET", "/api/file/search_subdirs", s.asTools(s.handleSearchSubdirs)},
		{"GET", "/api/file/archive", s.handleFileArchive},
		{"GET", "/api/file/download-trajectory/{id}", s.handleTrajectory},

		{"POST", "/api/skills", s.asTools(s.handleSkills)},
		{"POST", "/api/skills/sync", s.handleSkillsSync},
		{"POST", "/api/hooks", s.asTools(s.handleHooks)},
		{"GET", "/api/tools", s.handleTools},
		{"GET", "/api/tools/{$}", s.handleTools},
		{"GET", "/api/vscode/url", s.handleVSCodeURL},
		{"GET", "/api/vscode/status", s.handleVSCodeStatus},
		{"GET", "/api/desktop/url", s.handleDesktopURL},

		{"GET", "/api/git/changes", s.asTools(s.handleGitChanges)},
		{"GET", "/api/git/diff", s.asTools(s.handleGitDiff)},
		{"GET", "/api/git/commits", s.asTools(s.handleGitCommits)},
		{"GET", "/api/git/commits/{sha}/changes", s.asTools(s.handleGitCommitChanges)},
	}...)
}

// conversationTable lists the routes of conversations.
func (s *Server) conversationTable() []route {
	const conv = "/api/conversations"
	return []route{
		{"POST", conv, s.handleConversationCreate},
		{"GET", conv, s.handleConversationBatch},
		{"GET", conv + "/search", s.handleConversationSearch},
		{"GET", conv + "/count", s.handleConversationCount},
		{"POST", conv + "/prepare-for-sandbox-pause", s.handlePreparePause},
		{"GET", conv + "/{id}", s.handleConversationGet},
		{"PATCH", conv + "/{id}", s.handleConversationPatch},
		{"DELETE", conv + "/{id}", s.handleConversationDelete},
		{"POST", conv + "/{id}/run", s.handleRun},
		{"POST", conv + "/{id}/pause", s.handlePause},
		{"POST", conv + "/{id}/interrupt", s.handleInterrupt},
		{"POST", conv + "/{id}/events/respond_to_confirmation", s.handleRespond},
		{"POST", conv + "/{id}/confirmation_policy", s.handlePolicy},
		{"POST", conv + "/{id}/security_analyzer", s.handleAnalyzer},
		{"POST", conv + "/{id}/secrets", s.handleSecrets},
		{"POST", conv + "/{id}/switch_llm", s.handleSwitchLLM},
		{"POST", conv + "/{id}/switch_acp_model", s.handleSwitchACPModel},
		{
			"POST",
			conv + "/{id}/switch_profile",
			s.refusing("profile_name", http.StatusNotFound, "Profile not found: this server keeps none, use switch_llm"),
		},
		{
			"POST",
			conv + "/{id}/load_plugin",
			s.refusing("plugin_ref", http.StatusNotFound, "Plugin not found: this server has no marketplaces"),
		},
		{
			"POST",
			conv + "/{id}/goal",
			s.refusing("objective", http.StatusBadRequest, "This server runs no goals: send the objective as a message"),
		},
		{"POST", conv + "/{id}/goal/stop", s.handleGoalStop},
		{"POST", conv + "/{id}/goal/resume", s.handleGoalResume},
		{"POST", conv + "/{id}/fork", s.handleFork},
		{"POST", conv + "/{id}/navigate", s.handleNavigate},
		{"POST", conv + "/{id}/ask_agent", s.handleAsk},
		{"POST", conv + "/{id}/generate_title", s.handleTitle},
		{"POST", conv + "/{id}/condense", s.handleCondense},
		{"GET", conv + "/{id}/agent_final_response", s.handleFinalResponse},
		{"POST", conv + "/{id}/events", s.handleEventAdd},
		{"GET", conv + "/{id}/events", s.handleEventBatch},
		{"GET", conv + "/{id}/events/search", s.handleEventSearch},
		{"GET", conv + "/{id}/events/count", s.handleEventCount},
		{"GET", conv + "/{id}/events/{event}", s.handleEventGet},
	}
}

// routes builds the mux. It dispatches methods itself, so that a wrong method gets a JSON error
// with Allow.
func (s *Server) routes() http.Handler {
	byPattern := map[string]map[string]http.HandlerFunc{}
	for _, r := range s.table() {
		if byPattern[r.pattern] == nil {
			byPattern[r.pattern] = map[string]http.HandlerFunc{}
		}
		byPattern[r.pattern][r.method] = r.handle
	}
	mux := http.NewServeMux()
	for pattern, methods := range byPattern {
		allow := make([]string, 0, len(methods)+1)
		for m := range methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if h := methods[r.Method]; h != nil {
				h(w, r)
				return
			}
			w.Header().Set("Allow", strings.Join(allow, ", "))
			writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeDetail(w, http.StatusNotFound, "Not Found")
	})
	return mux
}

// handleHealth handles GET /health and GET /alive.
func (s *Server) handleHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// handleReady handles GET /ready. New has loaded everything.
func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// handleServerInfo handles GET /server_info.
func (s *Server) handleServerInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, serverInfo(s.cfg.Version, time.Since(s.started), s.idle()))
}

// protocolVersion is the release of upstream's server whose protocol this one speaks. Clients compare
// the member version of /server_info with what they need.
const protocolVersion = "1.43.1"

// serverInfo is the response of GET /server_info. build is this program's own version.
func serverInfo(build string, uptime, idle time.Duration) map[string]any {
	return map[string]any{
		"uptime":                       int(uptime.Seconds()),
		"idle_time":                    int(idle.Seconds()),
		"title":                        "Bivouac sandbox agent",
		"version":                      protocolVersion,
		"sdk_version":                  protocolVersion,
		"tools_version":                protocolVersion,
		"workspace_version":            protocolVersion,
		"build_git_sha":                "unknown",
		"build_git_ref":                build,
		"python_version":               "",
		"usable_tools":                 usableTools(),
		"runtime_idle_timeout_seconds": nil,
		"conversation_runtime":         "local",
		"max_foreground_terminal_timeout_seconds": nil,
		"capabilities": []string{"bash", "files", "idempotent_conversation_create_v1"},
		"docs":         nil,
		"redoc":        nil,
	}
}
