package operators

import (
	"slices"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// StatusReady is Nomad's status of a client that answers.
const StatusReady = "ready"

func newDrainBody(m fsm.ClientMark) wire.DrainProgress {
	return wire.DrainProgress{Drain: wire.OrNull(m.Drain), Stays: wire.OrEmpty(m.Stays), Failure: wire.OrNull(m.Failure)}
}

func newClientBody(v *fsm.View, c wire.SandboxClient) wire.Client {
	m := v.MarkOf(c.ID)
	b := wire.Client{SandboxClient: c}
	if b.DrainProgress = newDrainBody(m); m.Mark != "" {
		b.Mark, b.Since = new(m.Mark), wire.TimeOrNull(&m.Since)
	}
	for _, sb := range sandboxesOn(c, v) {
		b.Workspaces++
		if sb.State() == fsm.SandboxRunning {
			b.Running++
		}
		if sb.Move != nil {
			b.Moving++
		}
		if sb.Copy == nil {
			b.WithoutCopy++
		}
	}
	return b
}

// sandboxesOn are those whose present workspace is on the client. What is left there of a move goes by
// itself.
func sandboxesOn(c wire.SandboxClient, v *fsm.View) (list []*fsm.Sandbox) {
	for _, id := range c.Sandboxes {
		if sb := v.SandboxAny(id); sb != nil && (sb.Home == nil || sb.Home.Client == c.ID) {
			list = append(list, sb)
		}
	}
	return list
}

// clients lists the clients, with those that are marked and that Nomad has forgotten.
func (s *Server) clients(c *request.Call, v *fsm.View) ([]wire.SandboxClient, error) {
	if s.cfg.Clients == nil {
		return nil, fsm.Errorf(fsm.CodeConflict, "this installation runs sandboxes as local "+
			"processes: it has no Nomad clients")
	}
	list, err := s.cfg.Clients.Clients(c.Ctx(), v.ClusterID())
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, one := range list {
		known[one.ID] = true
	}
	for _, m := range v.ClientMarks() {
		if !known[m.ID] {
			list = append(list, wire.SandboxClient{ID: m.ID})
		}
	}
	return list, nil
}

// ClientList handles GET /api/v1/operator/clients.
func (s *Server) ClientList(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	list, err := s.clients(c, v)
	if err != nil {
		return response.Response{}, err
	}
	items := make([]wire.Client, len(list))
	for i, one := range list {
		items[i] = newClientBody(v, one)
	}
	return response.OK(wire.NewPage(items, ""))
}

// ClientDrain handles POST /api/v1/operator/clients/{client_id}/drain: what runs there is
// paused, its workspaces are moved to other clients, and it is resumed there. It is refused where that
// can't be done.
func (s *Server) ClientDrain(c *request.Call) (response.Response, error) {
	return s.markClient(c, fsm.ClientDraining, func(v *fsm.View, this wire.SandboxClient, others int) error {
		switch {
		case this.Status != StatusReady:
			return fsm.Errorf(fsm.CodeConflict,
				"Nomad says that the client %s is %s: what it has can't be read now; if it is gone for good, mark it as lost",
				this.ID, this.Status)
		case others == 0:
			return fsm.Errorf(fsm.CodeConflict,
				"there is no other client that takes jobs: add one, or make one eligible, before you drain %s", this.ID)
		case v.ClientMark(this.ID) == fsm.ClientLost:
			return nil // the state refuses it
		case v.Hold() != nil:
			return fsm.Errorf(fsm.CodeConflict,
				"the cluster holds, and moves no workspace: look at the hold first (bivouac runbook hold)")
		}
		if err := s.tryMove(c, v, this); err != nil {
			return fsm.Errorf(fsm.CodeConflict, "the client %s can't be drained now, and nothing was paused: %s", this.ID, err)
		}
		return nil
	})
}

// tryMove asks whether all workspaces of a client could be moved. What is deleted, and members of warm
// pools, need not be.
func (s *Server) tryMove(c *request.Call, v *fsm.View, this wire.SandboxClient) error {
	list := slices.DeleteFunc(sandboxesOn(this, v), func(sb *fsm.Sandbox) bool {
		return sb.Desired == fsm.DesiredDeleted ||
			sb.Member()
	})
	if len(list) == 0 {
		return nil
	}
	var avoid []string
	for _, m := range v.ClientMarks() {
		avoid = append(avoid, m.ID)
	}
	return s.cfg.Clients.TryMove(c.Ctx(), this.ID, avoid, list)
}

// ClientLost handles POST /api/v1/operator/clients/{client_id}/lost: the machine is gone for
// good, and its workspaces come back from their copies. It is refused while Nomad reaches the client.
func (s *Server) ClientLost(c *request.Call) (response.Response, error) {
	return s.markClient(c, fsm.ClientLost, func(_ *fsm.View, this wire.SandboxClient, _ int) error {
		if this.Status == StatusReady || this.Status == "initializing" {
			return fsm.Errorf(fsm.CodeConflict, "Nomad reaches the client %s (%s): it is not lost; drain it instead", this.ID,
				this.Status)
		}
		return nil
	})
}

// ClientEnable handles POST /api/v1/operator/clients/{client_id}/enable: it ends the mark.
func (s *Server) ClientEnable(c *request.Call) (response.Response, error) {
	return s.markClient(c, "", func(*fsm.View, wire.SandboxClient, int) error { return nil })
}

// markClient marks a client that Nomad or the state knows, if may allows it. others counts the other
// clients that take jobs and are not marked.
func (s *Server) markClient(
	c *request.Call,
	mark string,
	may func(v *fsm.View, this wire.SandboxClient, others int) error,
) (response.Response, error) {
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		id := c.Params.ByName("client_id")
		v, err := c.View()
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		if !v.Active(fsm.VersionClients) {
			return nil, request.SecretWrites{},
				fsm.NeedsVersion("marking a Nomad client", fsm.VersionClients, v.ProtocolVersion())
		}
		this, others, err := s.client(c, v, id)
		if err != nil {
			return nil, request.SecretWrites{}, err
		}
		if err := may(v, this, others); err != nil {
			return nil, request.SecretWrites{}, err
		}
		s.Log.Warn("operator marks a Nomad client", "key", c.KeyID(v), "operator", c.Caller.User, "object", id, "act", mark)
		return &fsm.ClientMarkBody{ID: id, Mark: mark}, request.SecretWrites{}, nil
	}, func(fsm.Result) (response.Response, error) { return response.OK(wire.Success{Success: true}) })
}

// client returns a client, and how many others take jobs and are not marked.
func (s *Server) client(c *request.Call, v *fsm.View, id string) (this wire.SandboxClient, others int, err error) {
	list, err := s.clients(c, v)
	if err != nil {
		return this, 0, err
	}
	found := false
	for _, one := range list {
		if one.ID == id {
			this, found = one, true
		} else if one.Eligible && one.Status == StatusReady && v.ClientMark(one.ID) == "" {
			others++
		}
	}
	if !found {
		return this, 0, response.NotFound()
	}
	return this, others, nil
}
