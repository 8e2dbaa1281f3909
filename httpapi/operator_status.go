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
	// Hold is null while there is none.
	Hold *holdBody `json:"hold"`
	// Removals are those of the leader's own accord in the last hour.
	Removals []removalBody `json:"removals"`
	// Differs names what this node's file has otherwise than the cluster.
	Differs []string `json:"differs"`
}

// handleStatus handles GET /api/v1/operator/status. It asks nobody, so that it
// answers when there is no leader.
func (s *Server) handleStatus(c *call) (answer, error) {
	b := statusReport{Status: s.cluster.Status(), Ready: true}
	b.Servers = orEmpty(b.Servers)
	if err := s.cluster.Ready(); err != nil {
		b.Ready, b.Reason = false, orNull(err.Error())
	}
	v, err := c.viewWith(cluster.Stale)
	if err != nil {
		return answer{}, err
	}
	b.Hold, b.Removals, b.Differs = newHoldBody(v.Hold()), newRemovals(v, c.now), []string{}
	if s.cfg.Differs != nil {
		b.Differs = orEmpty(s.cfg.Differs(v))
	}
	return ok(b)
}
