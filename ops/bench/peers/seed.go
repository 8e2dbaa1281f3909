package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// seeders is the number of concurrent commands.
const seeders = 96

// seeder fills a store by the commands that would have created the data: there is no Nomad or
// agent server to start a hundred thousand conversations.
type seeder struct {
	do func(ctx context.Context, user string, body fsm.Body) (fsm.Result, error)
}

// seedConfig keeps a seeder's sandboxes, which run nowhere, from timing out before they are
// paused, and lets one user keep a hundred thousand conversations.
const seedConfig = `
sandboxes {
  start_timeout = "1h"
}
limits {
  user {
    running_sandboxes = 0
    total_sandboxes   = 0
    starts_per_minute = 0
    state_bytes       = 1073741824
  }
}
`

// seeder makes a seeder that proposes to the running cluster over the peer port, as `bivouac
// keys bootstrap` does.
func (b *bivouac) seeder() (*seeder, error) {
	tls := filepath.Join(filepath.Dir(filepath.Dir(b.config)), "tls")
	peer, err := cluster.NewPeerClient(peernet.TLSFiles{
		CAFile: filepath.Join(tls, "ca.pem"), CertFile: filepath.Join(tls, "n0.pem"), KeyFile: filepath.Join(tls,
			"n0-key.pem"),
	}, b.peers[0])
	// It repeats one command until its outcome is known.
	return &seeder{func(ctx context.Context, user string, body fsm.Body) (result fsm.Result, err error) {
		id := uuid.NewString()
		var refused error
		err = until(ctx, readyLimit, string(body.CommandType())+" is done", func(ctx context.Context) (err error) {
			if parts := strings.Split(b.key, "_"); len(parts) == 3 {
				ctx = cluster.AsOperator(ctx, cluster.Operator{UserID: "admin", Lookup: parts[1], Key: b.key})
			}
			result, err = peer.Propose(ctx, fsm.NewCommand(id, time.Now(), user, body))
			switch fsm.CodeOf(err) {
			case fsm.CodeNoLeader, fsm.CodeOutcomeUnknown, fsm.CodeTimeout, fsm.CodeShuttingDown:
				return err
			}
			refused = err
			return nil
		})
		return result, errors.Join(err, refused)
	}}, err
}

// seedStore makes a seeder that applies to a store in this process, with one command per second
// of its clock. Each command is encoded and decoded as in the log.
func seedStore(store *fsm.Store, from time.Time) *seeder {
	var mu sync.Mutex
	return &seeder{func(_ context.Context, user string, body fsm.Body) (fsm.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		index := store.Index() + 1
		data, err := fsm.NewCommand(uuid.NewString(), from.Add(time.Duration(index)*time.Second), user, body).Encode()
		if err != nil {
			return fsm.Result{}, err
		}
		cmd, err := fsm.DecodeCommand(data)
		if err != nil {
			return fsm.Result{}, err
		}
		return store.Apply(index, cmd)
	}}
}

// spec creates the sandboxes' spec.
func (s *seeder) spec(ctx context.Context) error {
	_, err := s.do(ctx, "", &fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "bench", Template: fsm.Template{
		Driver: fsm.DriverDocker, Image: "registry.example.org/agent-server:1.2.3", WorkingDir: "/workspace/project",
		CPU: 500, Memory: 1024, NetworkMode: "bridge", VolumePath: "/workspace", Ports: map[string]int{
			fsm.PortAgentServer: 8000,
		},
		Env: map[string]string{"OH_WEBHOOKS_0_BASE_URL": "https://bivouac.example.org/api/v1/webhooks"},
	}}}})
	return err
}

// user creates a user with settings and an unknown key.
func (s *seeder) user(ctx context.Context, user string) error {
	sum := sha256.Sum256([]byte(user))
	hash := hex.EncodeToString(sum[:])
	if _, err := s.do(ctx, "",
		&fsm.APIKeyCreateBody{Lookup: hash[:12], Hash: hash, Name: "bench", UserID: user}); err != nil {
		return err
	}
	body := new(fsm.SettingsPutBody)
	if err := json.Unmarshal(document(1, 1), &body.Values); err != nil {
		return err
	}
	body.LLMAPIKey = &fsm.SecretRef{Path: "users/" + user + "/settings/llm_api_key", Version: 1}
	_, err := s.do(ctx, user, body)
	return err
}

// sandbox creates a user's sandbox and pauses it after use.
func (s *seeder) sandbox(ctx context.Context, user string, use func(ctx context.Context, sandbox string) error) error {
	id := hexID()
	sum := sha256.Sum256([]byte(id))
	if _, err := s.do(ctx, user, &fsm.SandboxCreateBody{
		ID: id, KeyRef: fsm.SecretRef{Path: "sandboxes/" + id + "/session", Version: 1}, KeyHash: hex.EncodeToString(sum[:]),
	}); err != nil {
		return err
	}
	if err := use(ctx, id); err != nil {
		return err
	}
	paused, err := s.do(ctx, user, &fsm.SandboxPauseBody{ID: id})
	if err != nil {
		return err
	}
	_, err = s.do(ctx, user, &fsm.SandboxObserveBody{Observations: []fsm.Observation{{ID: id, Status: fsm.SandboxStatus{
		State: fsm.SandboxPaused, Generation: paused.Sandbox.Generation, Job: fsm.JobRef{
			Version:    1,
			Registered: true,
		}, Workspace: id,
	}}}})
	return err
}

// conversation starts a conversation in a sandbox as the leader does: accepted, bound,
// finished.
func (s *seeder) conversation(ctx context.Context, user, sandbox string, n int) error {
	id := hexID()
	title, repo, branch, trigger := fmt.Sprintf("Conversation %d about the build", n), "example/repository", "main", "gui"
	request := fsm.StartRequest{
		Title:              &title,
		SelectedRepository: &repo,
		SelectedBranch:     &branch,
		Trigger:            &trigger,
		AgentType:          "default",
	}
	if _, err := s.do(ctx, user, &fsm.StartTaskCreateBody{ID: id, ConversationID: id, Request: request}); err != nil {
		return err
	}
	if _, err := s.do(ctx, user, &fsm.StartTaskBindBody{ID: id, SandboxID: sandbox}); err != nil {
		return err
	}
	_, err := s.do(ctx, user, &fsm.StartTaskFinishBody{ID: id, Conversation: fsm.Conversation{
		ID: id, Title: &title, SelectedRepository: &repo, SelectedBranch: &branch, Trigger: &trigger, AgentKind: "openhands",
	}})
	return err
}

// conversations creates many conversations of one user in one sandbox.
func (s *seeder) conversations(ctx context.Context, user string, count int) error {
	return s.sandbox(ctx, user, func(ctx context.Context, sandbox string) error {
		return inParallel(ctx, count, func(ctx context.Context, i int) error { return s.conversation(ctx, user, sandbox, i) })
	})
}

// people creates users with a sandbox of ten conversations each.
func (s *seeder) people(ctx context.Context, from, to int) error {
	return inParallel(ctx, to-from, func(ctx context.Context, i int) error {
		user := fmt.Sprintf("person-%d", from+i)
		if err := s.user(ctx, user); err != nil {
			return err
		}
		return s.sandbox(ctx, user, func(ctx context.Context, sandbox string) error {
			for n := range 10 {
				if err := s.conversation(ctx, user, sandbox, n); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func inParallel(ctx context.Context, count int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(seeders)
	for i := range count {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// hexID makes an id in the API's format.
func hexID() string {
	id := uuid.New()
	return hex.EncodeToString(id[:])
}
