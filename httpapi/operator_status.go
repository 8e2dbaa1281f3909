package httpapi

import (
	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// statusReport is the response of GET /api/v1/operator/status: the cluster as this node sees it,
// and whether it can serve.
type statusReport struct {
	cluster.Status
	Ready  bool    `json:"ready"`
	Reason *string `json:"reason"`
	// Hold is null without a hold.
	Hold *holdBody `json:"hold"`
	// Removals counts the leader's automatic removals of the last hour.
	Removals []removalBody `json:"removals"`
	// Differs lists the settings in which this node's file differs from the cluster.
	Differs []string `json:"differs"`
	// Bytes is what users keep in the state.
	Bytes stateBody `json:"state_bytes"`
	// SpecsWithoutIsolation are the ids of the specs whose sandboxes are not isolated from their
	// machine.
	SpecsWithoutIsolation []string `json:"specs_without_isolation"`
	// Drains are the Nomad clients that are being drained.
	Drains []statusDrain `json:"drains"`
	// Sandboxes counts the sandboxes of the state by their own, DELETING ones included.
	Sandboxes map[string]int `json:"sandboxes"`
	// Report is the node's own. It is null where it makes none.
	Report *cluster.Report `json:"report"`
}

// stateBody is what users keep in the state, in bytes: all together with their limit, and the user
// who keeps most.
type stateBody struct {
	Used        int `json:"used"`
	Limit       int `json:"limit"`
	LargestUser int `json:"largest_user"`
}

// statusDrain is a Nomad client that is being drained.
type statusDrain struct {
	Client string    `json:"client"`
	Since  *wireTime `json:"since"`
	drainBody
}

func newStatusDrains(v *fsm.View) []statusDrain {
	list := []statusDrain{}
	for _, m := range v.ClientMarks() {
		if m.Mark == fsm.ClientDraining {
			list = append(list, statusDrain{m.ID, wireTimeOrNull(&m.Since), newDrainBody(m)})
		}
	}
	return list
}

// handleStatus handles GET /api/v1/operator/status. It reads only local state, so it works without
// a leader.
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
	_, b.Bytes.Limit = v.StateLimits("")
	b.Bytes.Used, b.Bytes.LargestUser = v.Usage("").StateBytes, v.LargestState()
	if s.cfg.Differs != nil {
		b.Differs = orEmpty(s.cfg.Differs(v))
	}
	b.SpecsWithoutIsolation = []string{}
	for _, s := range v.Specs() {
		if s.Template.Isolated() == fsm.IsolationNone {
			b.SpecsWithoutIsolation = append(b.SpecsWithoutIsolation, s.ID)
		}
	}
	b.Sandboxes, b.Drains = sandboxStates(v), newStatusDrains(v)
	if s.cfg.Report != nil {
		b.Report = s.cfg.Report()
	}
	return ok(b)
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
