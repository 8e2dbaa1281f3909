// Package conversation keeps the conversations of an agent server on disk, and runs them.
package conversation

import (
	"cmp"
	"context"
	"log/slog"
	"sync"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/relay"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/webhook"
)

// Service are the conversations of a server: their store, their runs, and what they need to reach
// models and the control plane.
type Service struct {
	cfg    config.Config
	logger *slog.Logger
	store  *store
	// relay is nil in a sandbox that reaches no node.
	relay    *relay.Relay
	webhooks *webhook.Sender
	// ctx ends when the server stops, by stop.
	ctx  context.Context //nolint:containedctx // runs outlive the requests that start them
	stop context.CancelCauseFunc
	// background are the runs, and what else goes on without a request.
	background sync.WaitGroup
	// slots bounds the runs.
	slots chan struct{}
}

// Open reads the conversations on disk, starts to send webhooks, and goes on with the runs that a
// restart broke off. Close ends it.
func Open(cfg config.Config) (*Service, error) {
	st, err := openStore(cfg.ConversationsPath, newSealer(cfg.SecretKey), cfg.Logger)
	if err != nil {
		return nil, err
	}
	for _, c := range st.byID {
		// Without a secret key the request that the engine is made of is not on disk.
		c.resumes = st.sealer != nil && !cfg.EndBrokenRuns
	}
	ctx, stop := context.WithCancelCause(context.Background())
	s := &Service{
		cfg: cfg, logger: cfg.Logger, store: st, ctx: ctx, stop: stop,
		relay:    relay.New(cfg),
		webhooks: webhook.New(cfg),
		slots:    make(chan struct{}, cmp.Or(cfg.MaxRuns, defaultRuns)),
	}
	if s.webhooks.Enabled() {
		st.whenStored(func(c *Conversation) { s.webhooks.TellEvents(c.Id, c.tail) })
		for _, c := range st.all() { // the last process may have ended between its disk and its call
			c.tellStored()
		}
	}
	s.background.Go(func() { s.webhooks.Run(ctx) })
	s.background.Go(s.goOn)
	s.background.Go(func() { s.webhooks.RunEvents(ctx) })
	return s, nil
}

// Get returns a conversation, nil for an unknown one.
func (s *Service) Get(id string) *Conversation { return s.store.get(id) }

// All returns the conversations, newest first.
func (s *Service) All() []*Conversation { return s.store.all() }

// Count is the number of conversations.
func (s *Service) Count() int { return s.store.count() }

// Busy reports whether the agent works in any conversation.
func (s *Service) Busy() bool { return s.store.running() }

// Update changes what a client sees of a conversation.
func (s *Service) Update(c *Conversation, fn func(*Meta)) error {
	err := c.change(fn)
	if err == nil {
		s.tell(c)
	}
	return err
}

// tell sends the conversation's present state to the control plane, soon.
func (s *Service) tell(c *Conversation) {
	if !s.webhooks.Enabled() {
		return
	}
	if i, err := c.Info(); err == nil { // otherwise it is gone
		s.webhooks.Tell(c.Id, i.UpdatedAt, i)
	}
}

// PreparePause ends the engines' processes, frees the indexes in memory and sends the webhooks.
// Everything is on disk already.
func (s *Service) PreparePause(ctx context.Context) {
	s.unload()
	s.webhooks.Flush(ctx)
}

// unload drops what conversations without a run hold in memory.
func (s *Service) unload() {
	for _, c := range s.store.all() {
		s.release(c)
		c.mu.Lock()
		c.drop()
		c.mu.Unlock()
	}
}

// Close ends all runs and engines, and waits for them.
func (s *Service) Close() {
	s.stop(ErrStopping)
	s.background.Wait()
	for _, c := range s.store.all() {
		s.release(c)
	}
	s.relay.Close()
}
