package starttask

import (
	"context"
	"encoding/json"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Store is where tasks read the replicated state; *fsm.Store implements it.
type Store interface {
	// View returns the newest read-only view of this node.
	View() *fsm.View
}

// Cluster proposes changes of the replicated state; cluster.Node implements it.
type Cluster interface {
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
}

// Agents is what start tasks need of agent servers; agent.Client implements it. The
// implementation bounds the time of every call.
type Agents interface {
	// CreateConversation makes the conversation of req.ConversationID, or finds the existing one.
	CreateConversation(
		ctx context.Context,
		baseURL, key string,
		req agent.CreateRequest,
	) (info agent.ConversationInfo, created bool, err error)
	// SendMessage sends a message to the conversation.
	SendMessage(ctx context.Context, baseURL, key, conversationID string, m agent.Message) error
	Projects
}

// Projects prepares a project's directory in a sandbox.
type Projects interface {
	// RunCommand runs a shell command and waits for its end. StartCommand does not wait.
	RunCommand(ctx context.Context, baseURL, key string, cmd agent.Command) (agent.Output, error)
	StartCommand(ctx context.Context, baseURL, key string, cmd agent.Command) (id string, err error)
	// Upload writes a file.
	Upload(ctx context.Context, baseURL, key, path string, content []byte) error
	// Skills returns the skills of a project, Hooks its hooks, nil for none.
	Skills(ctx context.Context, baseURL, key string, req agent.SkillsRequest) (json.RawMessage, error)
	Hooks(ctx context.Context, baseURL, key, dir string) (json.RawMessage, error)
}

// Secrets reads and writes the secret store; cmd adapts the secrets package. An unavailable store
// is an *fsm.Error with CodeSecretStore.
type Secrets interface {
	// Write stores a new version of the entry at path, check-and-set, and returns its reference.
	Write(ctx context.Context, path string, data map[string]string) (fsm.SecretRef, error)
	// Read returns one version; CodeNotFound when it is gone.
	Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	// Delete removes the entry with all its versions; an absent one is not an error.
	Delete(ctx context.Context, path string) error
}
