package agentserver

import (
	"net/http"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
)

// handleHealth handles GET /health and GET /alive.
func (s *Server) handleHealth(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// handleReady handles GET /ready. New has loaded everything.
func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// handleServerInfo handles GET /server_info.
func (s *Server) handleServerInfo(w http.ResponseWriter, _ *http.Request) {
	wire.WriteJSON(w, http.StatusOK, serverInfo(s.cfg.Version, time.Since(s.started), s.idle()))
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
