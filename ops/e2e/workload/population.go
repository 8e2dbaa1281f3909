package workload

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// Shape is the amount of data. Each user has settings and one paused sandbox with
// conversations.
type Shape struct {
	Users, Conversations int
}

// user is one user and its data.
type user struct {
	id, key, sandbox string
	conversations    []string

	// writing serializes the writes of the user's settings, so that their value only grows.
	writing sync.Mutex
	mu      sync.Mutex
	// sent is the newest value sent, acked the newest one acknowledged.
	sent, acked int
}

// noted returns sent and acked.
func (u *user) noted() (sent, acked int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sent, u.acked
}

// seeders is the number of users seeded concurrently.
const seeders = 64

// Seed gives a cluster users with data.
func Seed(ctx context.Context, f *testcluster.Cluster, shape Shape) error {
	_, err := seedCluster(ctx, f, shape)
	return err
}

func seedCluster(ctx context.Context, f *testcluster.Cluster, shape Shape) ([]*user, error) {
	peers, closePeers, err := f.Peers()
	if err != nil {
		return nil, err
	}
	defer closePeers()
	return seed(asOperator(ctx, f.Nodes[0].Key), peers, shape)
}

// seed writes the data through the nodes' peer ports.
func seed(ctx context.Context, peers []*cluster.PeerClient, shape Shape) ([]*user, error) {
	run := uuid.NewString()[:8]
	spec := &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "load", Template: fsm.Template{
		Driver: fsm.DriverDocker, Image: "nobody/starts-it:1", WorkingDir: "/workspace/project", CPU: 100, Memory: 128,
		Ports: map[string]int{fsm.PortAgentServer: 8000},
	}}}}
	if err := propose(ctx, peers[0], "", spec); err != nil {
		return nil, err
	}
	users := make([]*user, shape.Users)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(seeders)
	for i := range users {
		g.Go(func() error {
			u, err := seedUser(ctx, peers[i%len(peers)], fmt.Sprintf("load-%s-%d", run, i), shape.Conversations)
			if err != nil {
				return fmt.Errorf("seeding user %d: %w", i, err)
			}
			users[i] = u
			return nil
		})
	}
	return users, g.Wait()
}

func seedUser(ctx context.Context, via *cluster.PeerClient, id string, conversations int) (*user, error) {
	value, lookup := newKey()
	u := &user{id: id, key: value, sandbox: newID()}
	language := settingsText(0)
	bodies := []fsm.Body{
		&fsm.SettingsPutBody{Values: fsm.SettingsValues{Language: &language}},
		&fsm.SandboxCreateBody{
			ID:      u.sandbox,
			SpecID:  "load",
			KeyRef:  fsm.SecretRef{Path: "default/sandbox-" + u.sandbox + "/session", Version: 1},
			KeyHash: hashed(u.sandbox),
		},
	}
	for range conversations {
		task, conversation := newID(), newID()
		title := "What " + id + " asked: " + conversation
		bodies = append(bodies,
			&fsm.StartTaskCreateBody{ID: task, ConversationID: conversation},
			&fsm.StartTaskBindBody{ID: task, SandboxID: u.sandbox},
			&fsm.StartTaskFinishBody{
				ID:           task,
				Conversation: fsm.Conversation{ID: conversation, AgentKind: "openhands", Title: &title},
			})
		u.conversations = append(u.conversations, conversation)
	}
	bodies = append(bodies,
		&fsm.SandboxPauseBody{ID: u.sandbox},
		&fsm.SandboxObserveBody{
			Observations: []fsm.Observation{{ID: u.sandbox, Status: fsm.SandboxStatus{State: fsm.SandboxPaused, Generation: 2}}},
		})
	if err := propose(ctx, via, "",
		&fsm.APIKeyCreateBody{Lookup: lookup, Hash: hashed(value), Name: "load", UserID: id}); err != nil {
		return nil, err
	}
	for _, body := range bodies {
		if err := propose(ctx, via, id, body); err != nil {
			return nil, fmt.Errorf("%s: %w", body.CommandType(), err)
		}
	}
	return u, nil
}

// asOperator lets the nodes take commands that need the key of the cluster's first operator.
func asOperator(ctx context.Context, key string) context.Context {
	return cluster.AsOperator(ctx, cluster.Operator{UserID: "admin", Lookup: strings.Split(key, "_")[1], Key: key})
}

// propose retries a command while its outcome is unknown or there is no leader.
func propose(ctx context.Context, via *cluster.PeerClient, user string, body fsm.Body) error {
	cmd := fsm.NewCommand(uuid.NewString(), time.Now(), user, body)
	for attempt := 0; ; attempt++ {
		_, err := via.Propose(ctx, cmd)
		if code := fsm.CodeOf(err); err == nil || attempt == 20 ||
			code != fsm.CodeNoLeader && code != fsm.CodeOutcomeUnknown {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// newKey makes an API key in the product's format.
func newKey() (value, lookup string) {
	lookup = rand.Text()[:12]
	return "bvk_" + lookup + "_" + (rand.Text() + rand.Text())[:43], lookup
}

// newID makes an id in the API's format: 32 hexadecimal digits.
func newID() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
