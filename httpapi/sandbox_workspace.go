package httpapi

import (
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// handleSandboxAcceptWorkspace handles POST /api/v1/sandboxes/{sandbox_id}/accept-workspace. The
// owner of a sandbox in ERROR because of its workspace confirms that it is the right one. The next
// resume marks it again.
func (s *Server) handleSandboxAcceptWorkspace(c *call) (response.Response, error) {
	return c.commandSandbox(&fsm.SandboxAcceptWorkspaceBody{ID: c.Params.ByName("sandbox_id")})
}

// handleSandboxOperatorAcceptWorkspace handles POST
// /api/v1/operator/sandboxes/{sandbox_id}/accept-workspace: the same for any user's sandbox, even
// if the workspace has another sandbox's marker.
func (s *Server) handleSandboxOperatorAcceptWorkspace(c *call) (response.Response, error) {
	return c.commandSandbox(&fsm.SandboxAcceptWorkspaceBody{ID: c.Params.ByName("sandbox_id"), Operator: true})
}
