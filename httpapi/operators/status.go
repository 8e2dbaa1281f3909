package operators

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func newStatusDrains(v *fsm.View) []wire.DrainingClient {
	list := []wire.DrainingClient{}
	for _, m := range v.ClientMarks() {
		if m.Mark == fsm.ClientDraining {
			list = append(list, wire.DrainingClient{
				Client: m.ID, Since: wire.TimeOrNull(&m.Since), DrainProgress: newDrainBody(m),
			})
		}
	}
	return list
}

// Status handles GET /api/v1/operator/status. It reads only local state, so it works without
// a leader.
func (s *Server) Status(c *request.Call) (response.Response, error) {
	b := wire.Status{Status: s.Cluster.Status(), Ready: true}
	b.Servers = wire.OrEmpty(b.Servers)
	if err := s.Cluster.Ready(); err != nil {
		b.Ready, b.Reason = false, wire.OrNull(err.Error())
	}
	v, err := c.ViewWith(cluster.Stale)
	if err != nil {
		return response.Response{}, err
	}
	b.Hold, b.Removals, b.Differs = newHoldBody(v.Hold()), newRemovals(v, c.Now), []string{}
	_, b.Bytes.Limit = v.StateLimits("")
	b.Bytes.Used, b.Bytes.LargestUser = v.Usage("").StateBytes, v.LargestState()
	if s.cfg.Differs != nil {
		b.Differs = wire.OrEmpty(s.cfg.Differs(v))
	}
	b.SpecsWithoutIsolation = []string{}
	for _, s := range v.Specs() {
		if s.Template.Isolated() == fsm.IsolationNone {
			b.SpecsWithoutIsolation = append(b.SpecsWithoutIsolation, s.ID)
		}
	}
	b.Sandboxes, b.Drains = sandboxStates(v), newStatusDrains(v)
	b.Backup = v.Backup()
	if s.cfg.Report != nil {
		b.Report = s.cfg.Report()
	}
	return response.OK(b)
}

// sandboxStates counts as the metric bivouac_sandboxes does.
func sandboxStates(v *fsm.View) map[string]int {
	const deleting = "DELETING"
	counts := map[string]int{
		string(fsm.SandboxStarting): 0, string(fsm.SandboxRunning): 0, string(fsm.SandboxPaused): 0,
		string(fsm.SandboxError): 0, deleting: 0,
	}
	for sb := range v.AllSandboxes() {
		state := string(sb.State())
		if sb.Desired == fsm.DesiredDeleted {
			state = deleting
		}
		counts[state]++
	}
	return counts
}
