package operators

import (
	"fmt"
	"net/http"

	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// BackupList handles GET /api/v1/operator/backups: the backups in this node's directory and
// the newest one that the cluster has recorded. It works without a leader.
func (s *Server) BackupList(c *request.Call) (response.Response, error) {
	if s.cfg.Backups == nil {
		return response.Response{}, response.Error(http.StatusNotFound, "This node makes no backups: "+
			"its configuration has no backup block")
	}
	if err := c.ConfirmIfLed(); err != nil {
		return response.Response{}, err
	}
	report, err := s.cfg.Backups.Backups(c.Ctx())
	if err != nil {
		return response.Response{}, fmt.Errorf("listing backups: %w", err)
	}
	report.Files = wire.OrEmpty(report.Files)
	return response.OK(report)
}
