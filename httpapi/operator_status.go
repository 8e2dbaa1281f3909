package httpapi

import (
	"bivouac.dev/bivouac/cluster"
)

// statusReport is the answer of GET /api/v1/operator/status: this node's word on
// the cluster, and whether it can serve.
type statusReport struct {
	cluster.Status
	Ready  bool    `json:"ready"`
	Reason *string `json:"reason"`
}

// handleStatus handles GET /api/v1/operator/status. It asks nobody, so that it
// answers when there is no leader.
func (s *Server) handleStatus(*call) (answer, error) {
	b := statusReport{Status: s.cluster.Status(), Ready: true}
	b.Servers = orEmpty(b.Servers)
	if err := s.cluster.Ready(); err != nil {
		b.Ready, b.Reason = false, orNull(err.Error())
	}
	return ok(b)
}
