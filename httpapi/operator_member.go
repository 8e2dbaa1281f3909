package httpapi

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// handleMemberList handles GET /api/v1/operator/members. It queries every member and works without
// a leader.
func (s *Server) handleMemberList(c *call) (answer, error) {
	if s.cfg.Membership == nil {
		return answer{}, response.NotFound()
	}
	if err := c.confirmIfLed(); err != nil {
		return answer{}, err
	}
	return ok(wire.NewPage(wire.OrEmpty(s.cfg.Membership.Members(c.ctx())), ""))
}

// handleMemberTransfer handles PUT /api/v1/operator/transfer-leader: {"to": name}. Without "to" the
// most advanced follower leads next.
func (s *Server) handleMemberTransfer(c *call) (answer, error) {
	to := decode.OrZero(c.object().Text("to", fsm.MaxName))
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.TransferLeadership(c.operatorCtx(), to)
	})
}

// handleMemberRemove handles PUT /api/v1/operator/remove: it removes the member {"name"} for good.
// cluster.RemoveOptions describes the options.
func (s *Server) handleMemberRemove(c *call) (answer, error) {
	o := c.object()
	name, options := o.MustText("name", fsm.MaxName), readRemoveOptions(o)
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.RemoveServer(c.operatorCtx(), name, options)
	})
}

// handleMemberReplace handles PUT /api/v1/operator/replace: {"new"} replaces {"old"}.
func (s *Server) handleMemberReplace(c *call) (answer, error) {
	o := c.object()
	former, next, options := o.MustText("old", fsm.MaxName), o.MustText("new", fsm.MaxName), readRemoveOptions(o)
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.ReplaceServer(c.operatorCtx(), former, next, options)
	})
}

// handleMemberAllow handles PUT /api/v1/operator/allow: certificates of the node {"name"}, all of
// which were revoked, are accepted again.
func (s *Server) handleMemberAllow(c *call) (answer, error) {
	body := &fsm.CertificateAllowBody{Node: c.object().MustText("name", fsm.MaxName)}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if err := fsm.Validate(body); err != nil {
		return answer{}, err
	}
	if _, err := c.propose(body); err != nil {
		return answer{}, err
	}
	return ok(wire.Success{Success: true})
}

func readRemoveOptions(o decode.Object) cluster.RemoveOptions {
	return cluster.RemoveOptions{
		Force: o.BooleanOr("force", false), Revoke: o.BooleanOr("revoke", false),
		Fingerprint: decode.OrZero(o.Text("fingerprint", fsm.MaxName)),
	}
}

// changeMembers validates the request and makes the change.
func (s *Server) changeMembers(c *call, change func() error) (answer, error) {
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if s.cfg.Membership == nil {
		return answer{}, response.NotFound()
	}
	if err := c.confirm(); err != nil {
		return answer{}, err
	}
	if err := change(); err != nil {
		return answer{}, err
	}
	return ok(wire.Success{Success: true})
}
