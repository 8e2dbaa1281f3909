package agentserver

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// touch notes that somebody uses the sandbox, for server_info's idle_time.
// The middleware calls it for requests that are activity, the WebSocket
// handler for its frames.
func (s *Server) touch() { s.activity.Store(int64(time.Since(s.started))) }

// idle is how long ago the last activity was: 0 while a command or a
// conversation runs.
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

// isActivity tells a caller's use of the sandbox from the control plane
// looking after it, which must not keep an unused sandbox awake: reads of
// conversations and their events, health, and the preparation of a pause.
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

// running reports whether the agent works in any conversation. One whose
// events are not in memory is not being worked in.
func (st *store) running() bool {
	// Not under the store's lock: a deletion takes the two the other way round.
	st.mu.RLock()
	list := slices.Collect(maps.Values(st.byID))
	st.mu.RUnlock()
	for _, c := range list {
		c.mu.Lock()
		at := c.log != nil && !c.deleted && c.log.status == statusRunning
		c.mu.Unlock()
		if at {
			return true
		}
	}
	return false
}
