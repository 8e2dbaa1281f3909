package operators

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// MemberList handles GET /api/v1/operator/members. It queries every member and works without
// a leader.
func (s *Server) MemberList(c *request.Call) (response.Response, error) {
	if s.cfg.Membership == nil {
		return response.Response{}, response.NotFound()
	}
	if err := c.ConfirmIfLed(); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.NewPage(wire.OrEmpty(s.cfg.Membership.Members(c.Ctx())), ""))
}

// MemberTransfer handles PUT /api/v1/operator/transfer-leader: {"to": name}. Without "to" the
// most advanced follower leads next.
func (s *Server) MemberTransfer(c *request.Call) (response.Response, error) {
	to := decode.OrZero(c.Object().Text("to", fsm.MaxName))
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.TransferLeadership(c.OperatorCtx(), to)
	})
}

// MemberRemove handles PUT /api/v1/operator/remove: it removes the member {"name"} for good.
// cluster.RemoveOptions describes the options.
func (s *Server) MemberRemove(c *request.Call) (response.Response, error) {
	o := c.Object()
	name, options := o.MustText("name", fsm.MaxName), readRemoveOptions(o)
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.RemoveServer(c.OperatorCtx(), name, options)
	})
}

// MemberReplace handles PUT /api/v1/operator/replace: {"new"} replaces {"old"}.
func (s *Server) MemberReplace(c *request.Call) (response.Response, error) {
	o := c.Object()
	former, next, options := o.MustText("old", fsm.MaxName), o.MustText("new", fsm.MaxName), readRemoveOptions(o)
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.ReplaceServer(c.OperatorCtx(), former, next, options)
	})
}

// MemberAllow handles PUT /api/v1/operator/allow: certificates of the node {"name"}, all of
// which were revoked, are accepted again.
func (s *Server) MemberAllow(c *request.Call) (response.Response, error) {
	body := &fsm.CertificateAllowBody{Node: c.Object().MustText("name", fsm.MaxName)}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := fsm.Validate(body); err != nil {
		return response.Response{}, err
	}
	if _, err := c.Propose(body); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.Success{Success: true})
}

func readRemoveOptions(o decode.Object) cluster.RemoveOptions {
	return cluster.RemoveOptions{
		Force: o.BooleanOr("force", false), Revoke: o.BooleanOr("revoke", false),
		Fingerprint: decode.OrZero(o.Text("fingerprint", fsm.MaxName)),
	}
}

// changeMembers validates the request and makes the change.
func (s *Server) changeMembers(c *request.Call, change func() error) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if s.cfg.Membership == nil {
		return response.Response{}, response.NotFound()
	}
	if err := c.Confirm(); err != nil {
		return response.Response{}, err
	}
	if err := change(); err != nil {
		return response.Response{}, err
	}
	return response.OK(wire.Success{Success: true})
}
