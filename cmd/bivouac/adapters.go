package main

import (
	"context"
	"errors"
	"io"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/secrets"
)

// secretRetryAfter is what a client is told to wait when the secret store is
// sealed or away.
const secretRetryAfter = 5 * time.Second

// secretStore gives a secrets.Store the error vocabulary of the other
// packages: it implements scheduler.Secrets and httpapi.Secrets.
type secretStore struct{ store secrets.Store }

// Write stores a new version and returns its number.
func (s secretStore) Write(ctx context.Context, path string, data map[string]string) (int, error) {
	version, err := s.store.Write(ctx, path, data)
	return version, secretError(err)
}

// Read gives one version.
func (s secretStore) Read(ctx context.Context, path string, version int) (map[string]string, error) {
	data, err := s.store.Read(ctx, path, version)
	return data, secretError(err)
}

// Delete removes an entry.
func (s secretStore) Delete(ctx context.Context, path string) error {
	return secretError(s.store.Delete(ctx, path))
}

// Collect destroys what nobody refers to.
func (s secretStore) Collect(ctx context.Context, live func(path string, version int) bool) (int, error) {
	n, err := s.store.Collect(ctx, live)
	return n, secretError(err)
}

// secretError translates the sentinels of package secrets. The text of the
// cause stays behind: it is for the log, and what it holds is not ours.
func secretError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, secrets.ErrNotFound):
		return fsm.Errorf(fsm.CodeNotFound, "the secret is not in the secret store")
	case errors.Is(err, secrets.ErrInvalid):
		return fsm.Errorf(fsm.CodeInvalid, "the secret is too large or its name can't be stored")
	case errors.Is(err, secrets.ErrUnavailable):
		return &fsm.Error{Code: fsm.CodeSecretStore, Message: "the secret store is sealed or away; nothing was stored", RetryAfter: secretRetryAfter}
	}
	return err
}

// sandboxLogs implements httpapi.Logs with a runner's.
type sandboxLogs struct{ logs scheduler.Logs }

// Logs reads what a sandbox's task wrote.
func (l sandboxLogs) Logs(ctx context.Context, clusterID, sandboxID, stream string, tail int64, follow bool) (io.ReadCloser, error) {
	return l.logs.Logs(ctx, scheduler.Job{ClusterID: clusterID, SandboxID: sandboxID}, stream, tail, follow)
}

// agentServers implements httpapi.Agents with the client of agent servers.
type agentServers struct{ client *agent.Client }

// SendMessage gives a conversation a message.
func (a agentServers) SendMessage(ctx context.Context, baseURL, key, conversationID string, msg fsm.Message) error {
	m := agent.Message{Role: msg.Role, Run: msg.Run, Content: make([]agent.ContentBlock, len(msg.Content))}
	for i, b := range msg.Content {
		m.Content[i] = agent.ContentBlock{Type: b.Type, Text: b.Text, ImageURLs: b.ImageURLs, CachePrompt: b.CachePrompt}
	}
	err := a.client.SendMessage(ctx, baseURL, key, agent.DashedID(conversationID), m)
	var failed *agent.Error
	if errors.As(err, &failed) {
		return &httpapi.AgentError{Status: failed.Status, Cause: err}
	}
	return err
}

// ExecutionStatuses gives the status of each conversation the agent server
// knows, by its hex id.
func (a agentServers) ExecutionStatuses(ctx context.Context, baseURL, key string, ids []string) (map[string]string, error) {
	statuses := make(map[string]string, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), agent.MaxIDs)
		infos, err := a.client.Conversations(ctx, baseURL, key, ids[:n])
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			if info != nil {
				statuses[info.HexID()] = info.ExecutionStatus
			}
		}
		ids = ids[n:]
	}
	return statuses, nil
}
