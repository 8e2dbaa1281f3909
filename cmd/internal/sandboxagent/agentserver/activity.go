package agentserver

import (
	"time"
)

// touch records activity, for server_info's idle_time: a request that counts as activity, a frame of a
// WebSocket, a command's end.
func (s *Server) touch() { s.activity.Store(int64(time.Since(s.started))) }

// idle is the time since the last activity: 0 while a command or a conversation runs.
func (s *Server) idle() time.Duration {
	if s.bash.Busy() || s.conversations.Busy() {
		return 0
	}
	return max(time.Since(s.started)-time.Duration(s.activity.Load()), 0)
}
