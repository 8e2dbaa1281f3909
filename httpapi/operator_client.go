package httpapi

import (
	"context"
	"slices"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/response"
)

// Clients knows the machines that run sandboxes. cmd adapts the runner.
type Clients interface {
	// Clients lists them, by id, with the sandboxes of this cluster whose workspace each has.
	Clients(ctx context.Context, clusterID string) ([]SandboxClient, error)
	// TryMove is nil when the workspaces of sandboxes could be moved off a client now, to clients that are
	// none of avoid. It leaves nothing, and takes seconds.
	TryMove(ctx context.Context, from string, avoid []string, sandboxes []*fsm.Sandbox) error
}

// SandboxClient is a machine that runs sandboxes: one of Nomad's clients.
type SandboxClient struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Status is Nomad's: ready, down, disconnected, initializing, or "" for one that it has forgotten.
	Status string `json:"status"`
	// Eligible: Nomad places jobs there. It is false while Nomad itself drains the client.
	Eligible bool `json:"eligible"`
	// CPU is in MHz and Memory in MiB; what is free is 0 where the client takes no jobs.
	CPU        int64 `json:"cpu"`
	CPUFree    int64 `json:"cpu_free"`
	Memory     int64 `json:"memory"`
	MemoryFree int64 `json:"memory_free"`
	// Sandboxes are the ids of those whose workspace is there.
	Sandboxes []string `json:"-"`
}

// statusReady is Nomad's status of a client that answers.
const statusReady = "ready"

// clientBody is a client in the operator API.
type clientBody struct {
	SandboxClient
	// Mark is draining or lost, null for neither, and Since when an operator said so.
	Mark  *string   `json:"mark"`
	Since *wireTime `json:"since"`
	drainBody
	// Workspaces counts the workspaces there, Running those whose sandbox runs, Moving those that are
	// moved away now, and WithoutCopy those of which there is no copy.
	Workspaces  int `json:"workspaces"`
	Running     int `json:"running"`
	Moving      int `json:"moving"`
	WithoutCopy int `json:"without_copy"`
}

// drainBody is how far the drain of a client is.
type drainBody struct {
	// Drain is first while one workspace is moved before the others, all while these follow, stopped when
	// it can't be done. It is null without a drain, and for one that began below protocol version 9.
	Drain *string `json:"drain"`
	// Stays are the sandboxes that could not be moved, and Failure why the last of them was not.
	Stays   []string `json:"stays"`
	Failure *string  `json:"failure"`
}

func newDrainBody(m fsm.ClientMark) drainBody {
	return drainBody{orNull(m.Drain), orEmpty(m.Stays), orNull(m.Failure)}
}

func newClientBody(v *fsm.View, c SandboxClient) clientBody {
	m := v.MarkOf(c.ID)
	b := clientBody{SandboxClient: c}
	if b.drainBody = newDrainBody(m); m.Mark != "" {
		b.Mark, b.Since = new(m.Mark), wireTimeOrNull(&m.Since)
	}
	for _, sb := range c.sandboxes(v) {
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

// sandboxes are those whose present workspace is on the client. What is left there of a move goes by
// itself.
func (c SandboxClient) sandboxes(v *fsm.View) (list []*fsm.Sandbox) {
	for _, id := range c.Sandboxes {
		if sb := v.SandboxAny(id); sb != nil && (sb.Home == nil || sb.Home.Client == c.ID) {
			list = append(list, sb)
		}
	}
	return list
}

// clients lists the clients, with those that are marked and that Nomad has forgotten.
func (c *call) clients(v *fsm.View) ([]SandboxClient, error) {
	if c.server.cfg.Clients == nil {
		return nil, fsm.Errorf(fsm.CodeConflict, "this installation runs sandboxes as local "+
			"processes: it has no Nomad clients")
	}
	list, err := c.server.cfg.Clients.Clients(c.ctx(), v.ClusterID())
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, one := range list {
		known[one.ID] = true
	}
	for _, m := range v.ClientMarks() {
		if !known[m.ID] {
			list = append(list, SandboxClient{ID: m.ID})
		}
	}
	return list, nil
}

// handleClientList handles GET /api/v1/operator/clients.
func (s *Server) handleClientList(c *call) (answer, error) {
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	list, err := c.clients(v)
	if err != nil {
		return answer{}, err
	}
	items := make([]clientBody, len(list))
	for i, one := range list {
		items[i] = newClientBody(v, one)
	}
	return ok(newPage(items, ""))
}

// handleClientDrain handles POST /api/v1/operator/clients/{client_id}/drain: what runs there is
// paused, its workspaces are moved to other clients, and it is resumed there. It is refused where that
// can't be done.
func (s *Server) handleClientDrain(c *call) (answer, error) {
	return s.markClient(c, fsm.ClientDraining, func(v *fsm.View, this SandboxClient, others int) error {
		switch {
		case this.Status != statusReady:
			return fsm.Errorf(fsm.CodeConflict,
				"Nomad says that the client %s is %s: what it has can't be read now; if it is gone for good, mark it as lost",
				this.ID, this.Status)
		case others == 0:
			return fsm.Errorf(fsm.CodeConflict,
				"there is no other client that takes jobs: add one, or make one eligible, before you drain %s", this.ID)
		case v.ClientMark(this.ID) == fsm.ClientLost:
			return nil // the state refuses it
		}
		if err := c.tryMove(v, this); err != nil {
			return fsm.Errorf(fsm.CodeConflict, "the client %s can't be drained now, and nothing was paused: %s", this.ID, err)
		}
		return nil
	})
}

// tryMove asks whether all workspaces of a client could be moved. What is deleted, and members of warm
// pools, need not be.
func (c *call) tryMove(v *fsm.View, this SandboxClient) error {
	list := slices.DeleteFunc(this.sandboxes(v), func(sb *fsm.Sandbox) bool {
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
	return c.server.cfg.Clients.TryMove(c.ctx(), this.ID, avoid, list)
}

// handleClientLost handles POST /api/v1/operator/clients/{client_id}/lost: the machine is gone for
// good, and its workspaces come back from their copies. It is refused while Nomad reaches the client.
func (s *Server) handleClientLost(c *call) (answer, error) {
	return s.markClient(c, fsm.ClientLost, func(_ *fsm.View, this SandboxClient, _ int) error {
		if this.Status == statusReady || this.Status == "initializing" {
			return fsm.Errorf(fsm.CodeConflict, "Nomad reaches the client %s (%s): it is not lost; drain it instead", this.ID,
				this.Status)
		}
		return nil
	})
}

// handleClientEnable handles POST /api/v1/operator/clients/{client_id}/enable: it ends the mark.
func (s *Server) handleClientEnable(c *call) (answer, error) {
	return s.markClient(c, "", func(*fsm.View, SandboxClient, int) error { return nil })
}

// markClient marks a client that Nomad or the state knows, if may allows it. others counts the other
// clients that take jobs and are not marked.
func (s *Server) markClient(
	c *call,
	mark string,
	may func(v *fsm.View, this SandboxClient, others int) error,
) (answer, error) {
	return c.once(func() (fsm.Body, secretWrites, error) {
		id := c.params.ByName("client_id")
		v, err := c.view()
		if err != nil {
			return nil, secretWrites{}, err
		}
		if !v.Active(fsm.VersionClients) {
			return nil, secretWrites{}, fsm.NeedsVersion("marking a Nomad client", fsm.VersionClients, v.ProtocolVersion())
		}
		this, others, err := c.client(v, id)
		if err != nil {
			return nil, secretWrites{}, err
		}
		if err := may(v, this, others); err != nil {
			return nil, secretWrites{}, err
		}
		s.log.Warn("operator marks a Nomad client", "key", c.keyID(v), "operator", c.who.user, "object", id, "act", mark)
		return &fsm.ClientMarkBody{ID: id, Mark: mark}, secretWrites{}, nil
	}, func(fsm.Result) (answer, error) { return ok(success{Success: true}) })
}

// client returns a client, and how many others take jobs and are not marked.
func (c *call) client(v *fsm.View, id string) (this SandboxClient, others int, err error) {
	list, err := c.clients(v)
	if err != nil {
		return this, 0, err
	}
	found := false
	for _, one := range list {
		if one.ID == id {
			this, found = one, true
		} else if one.Eligible && one.Status == statusReady && v.ClientMark(one.ID) == "" {
			others++
		}
	}
	if !found {
		return this, 0, response.NotFound()
	}
	return this, others, nil
}
