package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// What the Stop of a web page means.
const (
	// stopAfter is how long the sandbox's job runs on, so that a person who goes on waits for no start.
	stopAfter = 30 * time.Second
	// interruptTime bounds how long the answer waits for the agents. Those that run on are paused with
	// the job.
	interruptTime = 5 * time.Second
	// interruptedRuns bounds how many runs are interrupted.
	interruptedRuns = 100
)

// handleSandboxPause handles POST /api/v1/sandboxes/{sandbox_id}/pause. A page has no other Stop than
// this one: the runs are interrupted at once, and the job runs on for a while.
func (s *Server) handleSandboxPause(c *call) (response.Response, error) {
	body := &fsm.SandboxPauseBody{ID: c.Params.ByName("sandbox_id")}
	if !byCookie(c.Request) {
		return c.commandSandbox(body)
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return response.Response{}, err
	}
	sb := v.Sandbox(c.Caller.User, body.ID)
	if sb != nil && sb.Desired == fsm.DesiredPaused { // a page's second Stop leaves what the first one left
		return response.OK(wire.Success{Success: true})
	}
	if v.Active(fsm.VersionStops) {
		body.StopAfter = stopAfter
	}
	if sb != nil && proxy.IsServing(sb) {
		request.InfoOf(c.Request.Context()).Sandbox = sb.ID
		if err := s.interruptRuns(c.Ctx(), sb); err != nil {
			s.log.Info("interrupting the runs of a sandbox failed", "sandbox", sb.ID, "error", err)
		}
	}
	return c.commandSandbox(body)
}

// interruptRuns interrupts what runs in a sandbox. A conversation that has ended meanwhile is no error.
func (s *Server) interruptRuns(ctx context.Context, sb *fsm.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, interruptTime)
	defer cancel()
	entry, err := s.sandboxEntry(ctx, sb)
	if err != nil {
		return err
	}
	at, key := agentURL(sb.Status.Placement), entry[fsm.MemberKey]
	answer, err := s.agents.Call(ctx, at, key, AgentRequest{
		Method: http.MethodGet, Path: "/api/conversations/search?status=running&limit=100",
	})
	if err != nil {
		return err
	}
	var running struct {
		Items []struct {
			ID     string `json:"id"`
			Status string `json:"execution_status"`
		} `json:"items"`
	}
	if json.Unmarshal(answer, &running) != nil {
		return errBadAgentAnswer
	}
	var calls errgroup.Group
	calls.SetLimit(8)
	for _, one := range running.Items[:min(len(running.Items), interruptedRuns)] {
		id, is := decode.ParseUUID(one.ID)
		if !is || one.Status != "running" {
			continue
		}
		calls.Go(func() error {
			_, err := s.agents.Call(ctx, at, key, AgentRequest{
				Method: http.MethodPost, Path: "/api/conversations/" + decode.Dashed(id) + "/interrupt", Body: []byte("{}"),
			})
			return err
		})
	}
	return calls.Wait()
}
