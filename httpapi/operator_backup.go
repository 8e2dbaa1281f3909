package httpapi

import (
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleBackupList handles GET /api/v1/operator/backups: the backups in this node's directory and
// the newest one that the cluster has recorded. It works without a leader.
func (s *Server) handleBackupList(c *call) (answer, error) {
	if s.cfg.Backups == nil {
		return answer{}, response.Error(http.StatusNotFound, "This node makes no backups: "+
			"its configuration has no backup block")
	}
	if err := c.confirmIfLed(); err != nil {
		return answer{}, err
	}
	report, err := s.cfg.Backups.Backups(c.ctx())
	if err != nil {
		return answer{}, fmt.Errorf("listing backups: %w", err)
	}
	report.Files = wire.OrEmpty(report.Files)
	return ok(report)
}
