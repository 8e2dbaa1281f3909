package nomadtest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/agent"
)

// dial takes the lock for a call to an agent server. If that server hangs, dial waits until ctx
// ends.
func (n *Nomad) dial(ctx context.Context, op, baseURL string) {
	n.mu.Lock()
	if a := n.at(baseURL); a != nil && (n.cut[a.client] || n.hung != nil && n.hung(a.sandbox, a.client) ||
		n.hungCalls != nil && n.hungCalls(op, a.sandbox)) {
		n.calls["hung"]++
		n.mu.Unlock()
		<-ctx.Done()
		n.mu.Lock()
	}
}

// answering returns the allocation whose agent server answers at the address. The caller holds
// the lock.
func (n *Nomad) answering(ctx context.Context, op, baseURL string) (*alloc, error) {
	if err := ctx.Err(); err != nil {
		return nil, &agent.Error{Op: op, Kind: agent.ErrUnreachable, Detail: err.Error()}
	}
	n.calls[op]++
	a := n.at(baseURL)
	if a == nil || !a.answering {
		return nil, &agent.Error{Op: op, Kind: agent.ErrUnreachable}
	}
	return a, nil
}

// Health implements scheduler.AgentProbes.
func (n *Nomad) Health(ctx context.Context, baseURL string) error {
	n.dial(ctx, "health", baseURL)
	defer n.mu.Unlock()
	_, err := n.answering(ctx, "health", baseURL)
	return err
}

// Prove implements scheduler.AgentProbes: the server accepts the key that the secret store held
// for its job, or the key that Init passed.
func (n *Nomad) Prove(ctx context.Context, baseURL, key string, builtIn bool) (challenged bool, err error) {
	n.dial(ctx, "prove", baseURL)
	defer n.mu.Unlock()
	if builtIn {
		n.calls["challenge only"]++
	}
	if n.unchallenged && builtIn {
		return false, &agent.Error{Op: "prove", Kind: agent.ErrUnproven}
	}
	if n.unchallenged {
		n.calls["key shown"]++
	}
	_, err = n.authorised(ctx, "prove", baseURL, key)
	return err == nil && !n.unchallenged, err
}

func (n *Nomad) authorised(ctx context.Context, op, baseURL, key string) (*alloc, error) {
	a, err := n.answering(ctx, op, baseURL)
	if err != nil {
		return nil, err
	}
	want := a.bound
	if !a.deferred {
		want = n.secrets.given(a.keyRef)[fsm.MemberKey]
	}
	switch {
	case a.deferred && a.bound == "":
		return nil, &agent.Error{Op: op, Kind: agent.ErrUnavailable, Status: http.StatusServiceUnavailable}
	case want != key:
		return nil, &agent.Error{Op: op, Kind: agent.ErrUnauthorized, Status: http.StatusUnauthorized}
	}
	return a, nil
}

// PauseAll implements scheduler.AgentProbes.
func (n *Nomad) PauseAll(ctx context.Context, baseURL, key string, resumes bool) (agent.Paused, error) {
	n.dial(ctx, "pause all", baseURL)
	a, err := n.authorised(ctx, "pause all", baseURL, key)
	took := n.pausing
	if resumes {
		n.calls["pause all and resume"]++
	}
	n.mu.Unlock()
	if err != nil {
		return agent.Paused{}, err
	}
	select {
	case <-ctx.Done():
		return agent.Paused{}, ctx.Err()
	case <-time.After(took):
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	did := agent.Paused{}
	if a.busy {
		did.Conversations = 1
	}
	a.busy = false
	return did, nil
}

// ServerInfo implements scheduler.AgentProbes.
func (n *Nomad) ServerInfo(ctx context.Context, baseURL string) (agent.ServerInfo, error) {
	n.dial(ctx, "server info", baseURL)
	defer n.mu.Unlock()
	a, err := n.answering(ctx, "server info", baseURL)
	switch {
	case err != nil:
		return agent.ServerInfo{}, err
	case a.silent:
		return agent.ServerInfo{}, &agent.Error{
			Op:     "server info",
			Kind:   agent.ErrUnavailable,
			Status: http.StatusServiceUnavailable,
		}
	}
	return agent.ServerInfo{Idle: time.Since(a.used)}, nil
}

// Busy implements scheduler.AgentProbes.
func (n *Nomad) Busy(ctx context.Context, baseURL, key string) (bool, error) {
	n.dial(ctx, "busy", baseURL)
	defer n.mu.Unlock()
	a, err := n.authorised(ctx, "busy", baseURL, key)
	switch {
	case err != nil:
	case a.silent:
		err = &agent.Error{Op: "busy", Kind: agent.ErrUnavailable, Status: http.StatusServiceUnavailable}
	case a.refusing:
		err = &agent.Error{Op: "busy", Kind: agent.ErrUnauthorized, Status: http.StatusUnauthorized}
	}
	return err == nil && a.busy, err
}

// InitState implements scheduler.AgentMembers.
func (n *Nomad) InitState(ctx context.Context, baseURL string) (string, error) {
	n.dial(ctx, "init state", baseURL)
	defer n.mu.Unlock()
	a, err := n.answering(ctx, "init state", baseURL)
	switch {
	case err != nil:
		return "", err
	case !a.deferred:
		return "", fmt.Errorf("init state: %w", agent.ErrNotDeferred)
	case a.bound == "":
		return agent.StateDormant, nil
	}
	return agent.StateReady, nil
}

// Init implements scheduler.AgentMembers.
func (n *Nomad) Init(ctx context.Context, baseURL, initKey string, req agent.InitRequest) error {
	n.dial(ctx, "init", baseURL)
	defer n.mu.Unlock()
	a, err := n.answering(ctx, "init", baseURL)
	if err != nil {
		return err
	}
	own := n.secrets.given(a.keyRef)[fsm.MemberSecretKey]
	switch {
	case n.unchallenged && req.BuiltIn:
		return &agent.Error{Op: "init", Kind: agent.ErrUnproven}
	case own == "" || own != initKey:
		return &agent.Error{Op: "init", Kind: agent.ErrUnauthorized, Status: http.StatusUnauthorized}
	case a.bound != "" || !a.deferred:
		return fmt.Errorf("init: %w", agent.ErrNotDormant)
	case len(req.SessionAPIKeys) != 1 || req.SecretKey == "":
		return &agent.Error{Op: "init", Kind: agent.ErrRefused, Status: http.StatusUnprocessableEntity}
	}
	a.bound = req.SessionAPIKeys[0]
	return nil
}

// Upload implements scheduler.AgentFiles.
func (n *Nomad) Upload(ctx context.Context, baseURL, key, path string, content []byte) error {
	n.dial(ctx, "upload", baseURL)
	defer n.mu.Unlock()
	a, err := n.authorised(ctx, "upload", baseURL, key)
	switch {
	case err != nil:
		return err
	case n.noFiles:
		return &agent.Error{Op: "upload", Kind: agent.ErrRefused, Status: http.StatusMethodNotAllowed}
	}
	if n.files[a.sandbox] == nil {
		n.files[a.sandbox] = map[string][]byte{}
	}
	n.files[a.sandbox][path] = slices.Clone(content)
	return nil
}

// Download implements scheduler.AgentFiles.
func (n *Nomad) Download(ctx context.Context, baseURL, key, path string) ([]byte, error) {
	n.dial(ctx, "download", baseURL)
	defer n.mu.Unlock()
	a, err := n.authorised(ctx, "download", baseURL, key)
	if err != nil {
		return nil, err
	}
	content, ok := n.files[a.sandbox][path]
	switch {
	case n.noFiles:
		return nil, &agent.Error{Op: "download", Kind: agent.ErrRefused, Status: http.StatusNotFound}
	case !ok:
		return nil, fmt.Errorf("download: %w", agent.ErrNoFile)
	}
	return slices.Clone(content), nil
}

// NoFiles makes every agent server one that lacks the file endpoints.
func (n *Nomad) NoFiles() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noFiles = true
}

// PauseTakes sets how long a graceful pause takes.
func (n *Nomad) PauseTakes(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pausing = d
}

// Use records a use of the sandbox at this moment. busy says whether a conversation runs from
// then on.
func (n *Nomad) Use(id string, busy bool) {
	n.each(id, func(a *alloc) { a.used, a.busy = time.Now(), busy })
}

// Silent makes the sandbox's server answer 503 to Busy.
func (n *Nomad) Silent(id string, silent bool) {
	n.each(id, func(a *alloc) { a.silent = silent })
}

// Refusing makes the sandbox's server reject its key in Busy.
func (n *Nomad) Refusing(id string, refusing bool) {
	n.each(id, func(a *alloc) { a.refusing = refusing })
}

// HasBusy reports whether a conversation runs in the sandbox.
func (n *Nomad) HasBusy(id string) bool {
	busy := false
	n.each(id, func(a *alloc) { busy = busy || a.busy })
	return busy
}

// Restart ends the sandbox's process and starts it again in place.
func (n *Nomad) Restart(id string) {
	n.each(id, func(a *alloc) { a.bound = "" })
}

// NotDeferred makes the sandbox's server one without the deferred mode.
func (n *Nomad) NotDeferred(id string) {
	n.each(id, func(a *alloc) { a.deferred = false })
}

// Key returns the key that the sandbox's live server accepts, "" while it is dormant.
func (n *Nomad) Key(id string) string {
	key := ""
	n.each(id, func(a *alloc) {
		key = a.bound
		if !a.deferred {
			entry, _ := n.secrets.Read(context.Background(), a.keyRef)
			key = entry[fsm.MemberKey]
		}
	})
	return key
}

// each calls fn with each live allocation of the sandbox, under the lock.
func (n *Nomad) each(id string, fn func(*alloc)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.allocs[id] {
		if a.live && !a.stopping {
			fn(a)
		}
	}
}
