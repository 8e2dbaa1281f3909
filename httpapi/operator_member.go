package httpapi

import (
	"bivouac.dev/bivouac/cluster"
)

// handleMemberList handles GET /api/v1/operator/members. It asks every member and
// answers when there is no leader too.
func (s *Server) handleMemberList(c *call) (answer, error) {
	if s.cfg.Membership == nil {
		return answer{}, errNotFound()
	}
	if err := c.confirmIfLed(); err != nil {
		return answer{}, err
	}
	return ok(newPage(orEmpty(s.cfg.Membership.Members(c.ctx())), ""))
}

// handleMemberTransfer handles PUT /api/v1/operator/transfer-leader: {"to": name}
// leads next; without "to", whoever has most of the log.
func (s *Server) handleMemberTransfer(c *call) (answer, error) {
	to := deref(c.object().text("to", maxNameText))
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.TransferLeadership(c.ctx(), to)
	})
}

// handleMemberRemove handles PUT /api/v1/operator/remove: the member {"name"} is
// taken out for good; see cluster.RemoveOptions for the rest.
func (s *Server) handleMemberRemove(c *call) (answer, error) {
	o := c.object()
	name, options := o.mustText("name", maxNameText), readRemoveOptions(o)
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.RemoveServer(c.ctx(), name, options)
	})
}

// handleMemberReplace handles PUT /api/v1/operator/replace: {"new"} takes the place
// of {"old"}.
func (s *Server) handleMemberReplace(c *call) (answer, error) {
	o := c.object()
	former, next, options := o.mustText("old", maxNameText), o.mustText("new", maxNameText), readRemoveOptions(o)
	return s.changeMembers(c, func() error {
		return s.cfg.Membership.ReplaceServer(c.ctx(), former, next, options)
	})
}

func readRemoveOptions(o object) cluster.RemoveOptions {
	return cluster.RemoveOptions{
		Force: o.booleanOr("force", false), Revoke: o.booleanOr("revoke", false),
		Fingerprint: deref(o.text("fingerprint", maxNameText)),
	}
}

// changeMembers makes a change whose request has been read.
func (s *Server) changeMembers(c *call, change func() error) (answer, error) {
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if s.cfg.Membership == nil {
		return answer{}, errNotFound()
	}
	if err := c.confirm(); err != nil {
		return answer{}, err
	}
	if err := change(); err != nil {
		return answer{}, err
	}
	return ok(success{Success: true})
}
