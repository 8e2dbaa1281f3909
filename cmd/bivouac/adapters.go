package main

import (
	"context"
	"errors"
	"io"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
)

// sandboxLogs implements httpapi.Logs with a runner's scheduler.Logs.
type sandboxLogs struct{ logs scheduler.Logs }

// Logs reads what a sandbox's task wrote.
func (l sandboxLogs) Logs(
	ctx context.Context,
	clusterID, sandboxID string,
	part httpapi.LogPart,
) (io.ReadCloser, error) {
	return l.logs.Logs(ctx, scheduler.Job{ClusterID: clusterID, SandboxID: sandboxID}, scheduler.LogPart(part))
}

// clientLister lists the clients that run sandboxes; *nomad.Runner implements it.
type clientLister interface {
	Clients(ctx context.Context, clusterID string) ([]scheduler.Client, error)
	TryMove(ctx context.Context, from string, avoid []string, sandboxes []*fsm.Sandbox) error
}

// sandboxClients implements operators.Clients with a runner's clients.
type sandboxClients struct{ lister clientLister }

// Clients lists the clients.
func (s sandboxClients) Clients(ctx context.Context, clusterID string) ([]wire.SandboxClient, error) {
	list, err := s.lister.Clients(ctx, clusterID)
	out := make([]wire.SandboxClient, len(list))
	for i, c := range list {
		out[i] = wire.SandboxClient(c)
	}
	return out, err
}

// TryMove finds out whether workspaces could be moved off a client.
func (s sandboxClients) TryMove(ctx context.Context, from string, avoid []string, sandboxes []*fsm.Sandbox) error {
	return s.lister.TryMove(ctx, from, avoid, sandboxes)
}

// agentServers implements httpapi.Agents with agent.Client.
type agentServers struct{ client *agent.Client }

// SendMessage sends a message to a conversation.
func (a agentServers) SendMessage(
	ctx context.Context,
	baseURL, key, conversationID string,
	msg httpapi.AgentMessage,
) error {
	m := agent.Message{
		ID:      msg.EventID,
		Role:    msg.Role,
		Run:     msg.Run,
		Content: make([]agent.ContentBlock, len(msg.Content)),
	}
	for i, b := range msg.Content {
		m.Content[i] = agent.ContentBlock{Type: b.Type, Text: b.Text, ImageURLs: b.ImageURLs, CachePrompt: b.CachePrompt}
	}
	return agentError(a.client.SendMessage(ctx, baseURL, key, agent.DashedID(conversationID), m))
}

// Call makes another call.
func (a agentServers) Call(ctx context.Context, baseURL, key string, q httpapi.AgentRequest) ([]byte, error) {
	body, err := a.client.Request(ctx, baseURL, key, q.Method, q.Path, q.Body)
	return body, agentError(err)
}

// agentError makes a failed call the API's error.
func agentError(err error) error {
	var failed *agent.Error
	if errors.As(err, &failed) {
		return &httpapi.AgentError{Status: failed.Status, Detail: failed.Detail, Cause: err}
	}
	return err
}

// States returns the state of each conversation that the agent server knows, by its hex id.
func (a agentServers) States(
	ctx context.Context,
	baseURL, key string,
	ids []string,
) (map[string]httpapi.AgentState, error) {
	states := make(map[string]httpapi.AgentState, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), agent.MaxIDs)
		infos, err := a.client.Conversations(ctx, baseURL, key, ids[:n])
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			if info != nil {
				states[info.HexID()] = httpapi.AgentState{Status: info.ExecutionStatus, Metrics: info.Metrics}
			}
		}
		ids = ids[n:]
	}
	return states, nil
}
