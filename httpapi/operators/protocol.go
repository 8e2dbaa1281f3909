package operators

import (
	"fmt"
	"slices"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// ProtocolGet handles GET /api/v1/operator/protocol. It queries every member and works without
// a leader.
func (s *Server) ProtocolGet(c *request.Call) (response.Response, error) {
	if s.cfg.Membership == nil {
		return response.Response{}, response.NotFound()
	}
	if err := c.ConfirmIfLed(); err != nil {
		return response.Response{}, err
	}
	return s.protocolReport(c)
}

// ProtocolPut handles PUT /api/v1/operator/protocol: {"version": N} raises the cluster's
// protocol version for good.
func (s *Server) ProtocolPut(c *request.Call) (response.Response, error) {
	version := c.Object().MustInteger("version")
	if _, err := s.changeMembers(c, func() error {
		return s.cfg.Membership.SetProtocol(c.OperatorCtx(), clampVersion(version))
	}); err != nil {
		return response.Response{}, err
	}
	return s.protocolReport(c)
}

// clampVersion makes any number an int that is no version where the number is none.
func clampVersion(n int64) int { return int(min(max(n, 0), 1<<30)) }

func (s *Server) protocolReport(c *request.Call) (response.Response, error) {
	v, err := s.Cluster.View(c.Ctx(), cluster.Stale)
	if err != nil {
		return response.Response{}, fmt.Errorf("reading the protocol version: %w", err)
	}
	r := wire.Protocol{Version: v.ProtocolVersion(), Nodes: []wire.ProtocolNode{}, Brings: []wire.ProtocolVersion{}}
	known := []int{}
	for _, m := range s.cfg.Membership.Members(c.Ctx()) {
		node := wire.ProtocolNode{Name: m.Name, Error: wire.OrNull(m.Error)}
		if m.Error == "" {
			node.KnownVersion = new(m.KnownVersion)
			known = append(known, m.KnownVersion)
		}
		r.Nodes = append(r.Nodes, node)
	}
	if len(known) > 0 && len(known) == len(r.Nodes) {
		r.Newest = new(slices.Min(known))
	}
	for n := r.Version + 1; n <= fsm.ProtocolVersion; n++ {
		r.Brings = append(r.Brings, wire.ProtocolVersion{Version: n, Brings: fsm.VersionBrings(n)})
	}
	return response.OK(r)
}
