package agentserver

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// touch records activity, for server_info's idle_time. The middleware calls it for requests that
// count as activity, the WebSocket handler for frames.
func (s *Server) touch() { s.activity.Store(int64(time.Since(s.started))) }

// idle is the time since the last activity: 0 while a command or a conversation runs.
func (s *Server) idle() time.Duration {
	running, ended := s.bash.activity()
	if running || s.store.running() {
		return 0
	}
	idle := time.Since(s.started) - time.Duration(s.activity.Load())
	if !ended.IsZero() {
		idle = min(idle, time.Since(ended))
	}
	return max(idle, 0)
}

// isActivity separates use of the sandbox from the control plane's monitoring, which must not keep
// an unused sandbox awake: reads of conversations and their events, health, and the preparation of
// a pause.
func isActivity(r *http.Request) bool {
	const conversations = "/api/conversations"
	path := r.URL.Path
	switch {
	case strings.HasPrefix(path, "/sockets/"):
		return true
	case !strings.HasPrefix(path, "/api/"), path == conversations+"/prepare-for-sandbox-pause":
		return false
	case path == conversations || strings.HasPrefix(path, conversations+"/"):
		return r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions
	}
	return true
}

// running reports whether the agent works in any conversation. One that waits for a confirmation
// does not work.
func (st *store) running() bool {
	// Not under the store's lock: delete takes the two locks in the opposite order.
	st.mu.RLock()
	list := slices.Collect(maps.Values(st.byID))
	st.mu.RUnlock()
	for _, c := range list {
		c.mu.Lock()
		at := c.run != nil && (c.log == nil || c.log.status() == engine.StatusRunning)
		c.mu.Unlock()
		if at {
			return true
		}
	}
	return false
}
