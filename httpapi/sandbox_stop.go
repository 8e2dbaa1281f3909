package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
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

// interruptRuns interrupts what runs in a sandbox. Goals are stopped before it: between two runs a goal
// waits for its judge, and would begin another.
func (s *Server) interruptRuns(ctx context.Context, sb *fsm.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, interruptTime)
	defer cancel()
	entry, err := s.sandboxEntry(ctx, sb)
	if err != nil {
		return err
	}
	tell := func(which, what string, statuses ...string) error {
		return s.tellConversations(ctx, sb, entry[fsm.MemberKey], which, what, statuses)
	}
	return errors.Join(
		tell("sort_order=UPDATED_AT_DESC", "goal/stop", "running", "finished", "stuck"),
		tell("status=running", "interrupt", "running"))
}

// tellConversations posts to those of a sandbox's conversations that a search finds and that have one of
// the statuses. One that has ended meanwhile is no error.
func (s *Server) tellConversations(
	ctx context.Context, sb *fsm.Sandbox, key, which, what string, statuses []string,
) error {
	at := agentURL(sb.Status.Placement)
	answer, err := s.agents.Call(ctx, at, key, AgentRequest{
		Method: http.MethodGet, Path: "/api/conversations/search?limit=100&" + which,
	})
	if err != nil {
		return err
	}
	var found struct {
		Items []struct {
			ID     string `json:"id"`
			Status string `json:"execution_status"`
		} `json:"items"`
	}
	if json.Unmarshal(answer, &found) != nil {
		return errBadAgentAnswer
	}
	var calls errgroup.Group
	calls.SetLimit(8)
	for _, one := range found.Items[:min(len(found.Items), interruptedRuns)] {
		id, is := decode.ParseUUID(one.ID)
		if !is || !slices.Contains(statuses, one.Status) {
			continue
		}
		calls.Go(func() error {
			_, err := s.agents.Call(ctx, at, key, AgentRequest{
				Method: http.MethodPost, Path: "/api/conversations/" + decode.Dashed(id) + "/" + what, Body: []byte("{}"),
			})
			return err
		})
	}
	return calls.Wait()
}
