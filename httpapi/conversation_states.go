package httpapi

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
)

// What a listing below fsm.VersionEvents asks agent servers; from then on their events say it.

// agentCallers is how many agent servers one listing queries in parallel.
const agentCallers = 16

// maxAgentIDs is how many conversations of one sandbox a listing asks about. Further ones have no
// status.
const maxAgentIDs = 99

// agentStates queries each running sandbox's agent server once. It leaves out those that do not
// respond within Config.AgentTimeout, so that a sandbox can't make a listing fail or hang.
func (s *Server) agentStates(
	ctx context.Context,
	rows []*fsm.Conversation,
	sandboxes map[string]*fsm.Sandbox,
	keys sandboxKeys,
) map[string]AgentState {
	asks := map[string][]string{}
	for _, row := range rows {
		if keys.values[row.SandboxID] != "" && len(asks[row.SandboxID]) < maxAgentIDs {
			asks[row.SandboxID] = append(asks[row.SandboxID], row.ID)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AgentTimeout)
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(agentCallers)
	states := map[string]AgentState{}
	for id, ids := range asks {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			found, err := s.agents.States(ctx, agentURL(sandboxes[id].Status.Placement), keys.values[id], ids)
			if err != nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			for _, one := range ids {
				states[one] = found[one]
			}
			return nil
		})
	}
	_ = group.Wait() // a failed query leaves null
	return states
}
