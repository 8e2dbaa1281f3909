// Package eventfetch fetches events of conversations that the cluster lacks from their agent servers: those
// of an outage, and those that a server sends to nobody.
package eventfetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/semaphore"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/eventin"
	"bivouac.dev/bivouac/httpapi/eventseal"
	"bivouac.dev/bivouac/scheduler/agent"
)

// maxPages bounds the pages of one conversation: a hostile server has no end.
const maxPages = 20_000

// answersAtOnce bounds the answers of agent servers that are in memory, of all fetches together. One has
// at most 16 MiB, and is there several times until its events are kept.
const answersAtOnce = 4

// Store is where conversations are read; *fsm.Store implements it.
type Store interface{ View() *fsm.View }

// Events keeps and reads events; *cluster.Node implements it.
type Events interface {
	eventin.Cluster
	ReadEvents(
		ctx context.Context, chain fsm.EventChain, q cluster.EventQuery, fn func(at uint64, stored []byte) bool,
	) error
	FindEvents(ctx context.Context, chain fsm.EventChain, ids []string) (map[string][]byte, error)
}

// Cluster proposes commands.
type Cluster interface {
	Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error)
}

// Agents asks agent servers for events; *agent.Client implements it.
type Agents interface {
	// CountEvents counts events of a kind, of all kinds for "".
	CountEvents(ctx context.Context, baseURL, key, conversationID, kind string) (int, error)
	// Events returns a page of events from a token on, which is an event's id or "" for the first one, and
	// the token of the next page, "" at the end.
	Events(ctx context.Context, baseURL, key, conversationID, token string) ([]json.RawMessage, string, error)
	// NewestEvent returns the last event.
	NewestEvent(ctx context.Context, baseURL, key, conversationID string) (json.RawMessage, error)
}

// Fetcher fetches events while its node leads.
type Fetcher struct {
	store   Store
	cluster Cluster
	events  Events
	agents  Agents
	secrets eventseal.Secrets
	log     *slog.Logger
	// room bounds the answers that are in memory.
	room *semaphore.Weighted
}

// New makes a Fetcher; it starts nothing.
func New(
	store Store, cluster Cluster, events Events, agents Agents, secrets eventseal.Secrets, log *slog.Logger,
) *Fetcher {
	return &Fetcher{store: store, cluster: cluster, events: events, agents: agents, secrets: secrets, log: log,
		room: semaphore.NewWeighted(answersAtOnce)}
}

// Fetch keeps what the cluster lacks of the events of a sandbox's conversations. Its agent server is at url
// and accepts the key. It may be repeated, and ended at any time: what was fetched stays. An error says
// what could not be fetched.
func (f *Fetcher) Fetch(ctx context.Context, sb *fsm.Sandbox, url, key string) error {
	v := f.store.View()
	if !v.Active(fsm.VersionEvents) || sb.UserID == "" {
		return nil
	}
	var failed []error
	for row := range v.SandboxConversations(sb.ID) {
		s := source{f, row.UserID, row.ID, sb.ID, url, key}
		added, err := s.fetch(ctx)
		if added > 0 {
			f.log.Info("events fetched from their agent server", "conversation", row.ID, "sandbox", sb.ID, "count", added)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("conversation %s: %w", row.ID, err))
		}
		if ctx.Err() != nil || errors.Is(err, agent.ErrUnreachable) {
			break // the others are at the same server
		}
	}
	return errors.Join(failed...)
}

// source is one conversation at its agent server.
type source struct {
	*Fetcher
	user, conversation, sandbox string
	url, key                    string
}

// fetch keeps what is missing of the conversation's events. What is behind the last stored event is most
// likely all that is missing; then the number of events is the server's. Else the whole is read.
func (s *source) fetch(ctx context.Context) (added int, err error) {
	id := decode.Dashed(s.conversation)
	count, err := s.agents.CountEvents(ctx, s.url, s.key, id, "")
	if err != nil {
		return 0, err
	}
	chain := s.store.View().EventChain(s.user, s.conversation)
	switch {
	case count == 0:
		return 0, nil
	case chain == nil:
		added, _, err = s.walk(ctx, "", true)
		return added, err
	case chain.Number >= uint64(count):
		if known, err := s.hasNewest(ctx, *chain); err != nil || known {
			return 0, err
		}
	}
	last, err := s.last(ctx, *chain)
	if err != nil {
		return 0, err
	}
	added, number, err := s.walk(ctx, last, true)
	if err != nil || number >= uint64(count) && added > 0 {
		return added, err
	}
	more, _, err := s.walk(ctx, "", false)
	return added + more, err
}

// hasNewest reports whether a chain has the last event of the agent server.
func (s *source) hasNewest(ctx context.Context, chain fsm.EventChain) (bool, error) {
	if err := s.room.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer s.room.Release(1)
	newest, err := s.agents.NewestEvent(ctx, s.url, s.key, decode.Dashed(s.conversation))
	if err != nil {
		return false, err
	}
	events, err := eventin.Read([]json.RawMessage{newest})
	if err != nil || len(events) == 0 {
		return false, err
	}
	found, err := s.events.FindEvents(ctx, chain, []string{events[0].Head.ID})
	return len(found) > 0, err
}

// last is the id of a chain's last event, as agent servers write it.
func (s *source) last(ctx context.Context, chain fsm.EventChain) (id string, err error) {
	err = s.events.ReadEvents(ctx, chain, cluster.EventQuery{From: chain.Number - 1, Back: true},
		func(_ uint64, stored []byte) bool {
			id = decode.Dashed(string(fsm.EventID(stored)))
			return false
		})
	return id, err
}

// walk reads pages from a token on, and keeps what is new. number is how many events there are then. behind:
// what is new stands behind what is there.
func (s *source) walk(ctx context.Context, token string, behind bool) (added int, number uint64, err error) {
	key, err := s.sealing(ctx)
	if err != nil {
		return 0, 0, err
	}
	w := walk{source: s, seal: key, token: token, behind: behind}
	for range maxPages {
		token = w.token
		done, err := w.page(ctx)
		added += done.Added
		number = max(number, done.Number)
		if err != nil || w.token == "" || w.token == token {
			return added, number, err
		}
	}
	return added, number, errors.New("the agent server's pages of events have no end")
}

// walk is a way through a conversation's pages. token is that of the next one, facts are those of the
// former ones.
type walk struct {
	*source
	seal          eventseal.Key
	token         string
	begun, behind bool
	facts         fsm.EventFacts
}

// page keeps what is new of the next page.
func (w *walk) page(ctx context.Context) (done cluster.AppendedEvents, err error) {
	if err := w.room.Acquire(ctx, 1); err != nil {
		return done, err
	}
	defer w.room.Release(1)
	from := w.token
	var list []json.RawMessage
	list, w.token, err = w.agents.Events(ctx, w.url, w.key, decode.Dashed(w.conversation), from)
	if err != nil {
		return done, err
	}
	events, err := eventin.Read(list)
	if err != nil || len(events) == 0 {
		return done, err
	}
	if !w.begun && from != "" && events[0].Head.ID != eventin.ComparedID(from) {
		w.behind = false // it does not have that event, and begins with its first one
	}
	w.begun = true
	row := w.store.View().Conversation(w.user, w.conversation)
	untitled := row != nil && row.Untitled()
	if !untitled {
		w.facts.Title = ""
	}
	eventin.AddFacts(&w.facts, events, untitled)
	facts := w.facts
	if !w.behind && w.token != "" { // old ones may be new here, and the state is that of the last ones
		facts = fsm.EventFacts{Title: facts.Title}
	}
	to := eventin.Place{UserID: w.user, ConversationID: w.conversation, SandboxID: w.sandbox}
	return eventin.Append(ctx, w.events, w.seal, time.Now(), to, events, cluster.NoPosition, facts)
}

// sealing returns the key of the user's events, and makes the first one.
func (s *source) sealing(ctx context.Context) (eventseal.Key, error) {
	u := s.store.View().User(s.user)
	if u == nil {
		return eventseal.Key{}, fsm.Errorf(fsm.CodeNotFound, "User not found")
	}
	ref, err := eventseal.Ensure(ctx, s.secrets, u, func(body fsm.Body) (fsm.Result, error) {
		return s.cluster.Propose(ctx, fsm.NewCommand(uuid.NewString(), time.Now(), s.user, body))
	})
	if err != nil {
		return eventseal.Key{}, err
	}
	return eventseal.Of(ctx, s.secrets, ref)
}
