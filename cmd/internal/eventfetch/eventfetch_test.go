package eventfetch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cmd/internal/eventfetch"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/eventseal"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/nomadtest"
)

// keeping is a cluster of one node that keeps events in memory.
type keeping struct {
	*nomadtest.Cluster
	mu     sync.Mutex
	stored map[fsm.ChainKey][][]byte
}

func (k *keeping) AppendEvents(ctx context.Context, cmd fsm.Command) (cluster.AppendedEvents, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	body := *cmd.Body.(*fsm.EventsAppendBody)
	var have [][]byte
	if chain := k.Store.View().EventChain(cmd.UserID, body.ConversationID); chain != nil {
		have = k.stored[chain.Key]
	}
	var fresh [][]byte
	for _, stored := range body.Events {
		if !slices.ContainsFunc(have, func(old []byte) bool { return bytes.Equal(fsm.EventID(old), fsm.EventID(stored)) }) {
			fresh = append(fresh, stored)
		}
	}
	if len(fresh) == 0 {
		return cluster.AppendedEvents{Number: uint64(len(have))}, nil
	}
	body.At, body.Events = uint64(len(have)), fresh
	if _, err := k.Propose(ctx, fsm.NewCommand(uuid.NewString(), cmd.Time, cmd.UserID, &body)); err != nil {
		return cluster.AppendedEvents{}, err
	}
	for _, change := range k.Store.EventChanges() {
		k.stored[change.Chain.Key] = append(k.stored[change.Chain.Key], change.Events...)
	}
	return cluster.AppendedEvents{Number: uint64(len(have) + len(fresh)), Added: len(fresh)}, nil
}

func (k *keeping) ReadEvents(
	_ context.Context, chain fsm.EventChain, q cluster.EventQuery, fn func(at uint64, stored []byte) bool,
) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	fn(q.From, k.stored[chain.Key][q.From])
	return nil
}

func (k *keeping) FindEvents(_ context.Context, chain fsm.EventChain, ids []string) (map[string][]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := map[string][]byte{}
	for _, stored := range k.stored[chain.Key] {
		if id := string(fsm.EventID(stored)); slices.Contains(ids, id) {
			found[id] = stored
		}
	}
	return found, nil
}

// world is a sandbox with a conversation, and its agent server, whose pages are as upstream's.
type world struct {
	*testing.T
	*keeping
	secrets *nomadtest.Secrets
	fetcher *eventfetch.Fetcher
	url     string
	sandbox *fsm.Sandbox

	file []string // ids at the agent server
	size int      // of each text
	// says are the events that are changes of the status.
	says map[string]string

	calling sync.Mutex
	calls   []string
}

const talk = "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"

func newWorld(t *testing.T, version int) *world {
	w := &world{T: t, secrets: nomadtest.NewSecrets(), size: 10,
		keeping: &keeping{Cluster: nomadtest.NewOldCluster("c"), stored: map[fsm.ChainKey][][]byte{}}}
	w.Must(&fsm.ProtocolRaiseBody{Version: version}, "")
	w.Must(&fsm.APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: strings.Repeat("0", 64), UserID: "u1"}, "")
	w.Must(&fsm.SpecApplyBody{Specs: []fsm.Spec{{ID: "plain", Template: fsm.Template{
		Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/agent", WorkingDir: "project", CPU: 100,
		Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 0},
	}}}}, "operator")
	w.Must(&fsm.StartTaskCreateBody{ID: "t1", ConversationID: talk}, "u1")
	w.Must(&fsm.StartTaskBindBody{ID: "t1", SandboxID: "sb", Create: &fsm.SandboxCreateBody{
		ID: "sb", KeyRef: fsm.SecretRef{Path: fsm.SandboxKeyPath("sb"), Version: 1}, KeyHash: strings.Repeat("1", 64),
	}}, "")
	w.Must(&fsm.StartTaskFinishBody{ID: "t1", Conversation: fsm.Conversation{ID: talk, AgentKind: "openhands"}}, "")
	w.sandbox = w.Sandbox("sb")
	w.fetcher = eventfetch.New(w.Store, w.Cluster, w.keeping, agent.New(agent.Config{}), w.secrets,
		slog.New(slog.DiscardHandler))
	return w
}

// serve starts the agent server.
func (w *world) serve() *world {
	server := httptest.NewServer(w)
	w.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// ServeHTTP implements the agent server.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	path, fine := strings.CutPrefix(r.URL.Path, "/api/conversations/6f0c4e3b-9a7d-4c1e-8f2b-5a6d7c8e9f01/events/")
	q := r.URL.Query()
	w.calling.Lock()
	w.calls = append(w.calls, path+" "+q.Get("page_id"))
	w.calling.Unlock()
	if !fine || r.Header.Get(agent.KeyHeader) != "key" {
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	if path == "count" {
		fmt.Fprint(rw, len(w.file))
		return
	}
	ids := slices.Clone(w.file)
	if q.Get("sort_order") == "TIMESTAMP_DESC" {
		slices.Reverse(ids)
	}
	begin := max(slices.Index(ids, q.Get("page_id")), 0)
	limit, _ := strconv.Atoi(q.Get("limit"))
	end := min(begin+limit, len(ids))
	next, text := "null", strings.Repeat("x", w.size)
	if end < len(ids) {
		next = strconv.Quote(ids[end])
	}
	fmt.Fprintf(rw, `{"next_page_id":%s,"items":[`, next)
	for i, id := range ids[begin:end] {
		if status := w.says[id]; status != "" {
			fmt.Fprintf(rw, `%s{"id":%q,"kind":"ConversationStateUpdateEvent","source":"environment","key":"execution_status",`+
				`"value":%q}`, strings.Repeat(",", min(i, 1)), id, status)
			continue
		}
		fmt.Fprintf(rw, `%s{"id":%q,"kind":"MessageEvent","source":"agent","timestamp":"2026-01-02T03:04:05","text":"%s"}`,
			strings.Repeat(",", min(i, 1)), id, text)
	}
	fmt.Fprint(rw, "]}")
}

// more makes events at the agent server.
func (w *world) more(count int) *world {
	for range count {
		w.file = append(w.file, uuid.NewString())
	}
	return w
}

// fetch fetches, and returns the calls that it took.
func (w *world) fetch() []string {
	w.Helper()
	w.calling.Lock()
	w.calls = nil
	w.calling.Unlock()
	if err := w.fetcher.Fetch(w.Context(), w.sandbox, w.url, "key"); err != nil {
		w.Fatal(err)
	}
	w.calling.Lock()
	defer w.calling.Unlock()
	return w.calls
}

// kept are the ids that the cluster has, with dashes.
func (w *world) kept() (ids []string) {
	if chain := w.Store.View().EventChain("u1", talk); chain != nil {
		for _, stored := range w.stored[chain.Key] {
			hex := string(fsm.EventID(stored))
			ids = append(ids, uuid.MustParse(hex).String())
		}
	}
	return ids
}

// TestFetch: what a conversation from before has, what is missing at the end, and what is missing in the
// middle. Where nothing is missing it takes two small calls.
func TestFetch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fsm.ProtocolVersion).serve().more(250)
	w.fetch()
	if !slices.Equal(w.kept(), w.file) {
		t.Fatalf("%d of %d are kept", len(w.kept()), len(w.file))
	}
	if calls := w.fetch(); len(calls) != 2 {
		t.Errorf("nothing was missing, and it took %q", calls)
	}
	last := w.file[249]
	w.more(3)
	if calls := w.fetch(); !slices.Equal(w.kept(), w.file) || !slices.Equal(calls, []string{"count ", "search " + last}) {
		t.Errorf("%d of %d are kept after %q", len(w.kept()), len(w.file), calls)
	}
	missing := uuid.NewString()
	w.file = slices.Insert(w.file, 100, missing)
	w.fetch()
	if want := slices.Concat(w.file[:100], w.file[101:], []string{missing}); !slices.Equal(w.kept(), want) {
		t.Errorf("one in the middle did not come behind the others: %d of %d", len(w.kept()), len(w.file))
	}
	// As many, and others: the cluster has one that the server lost.
	w.file = append(w.file[:len(w.file)-1:len(w.file)-1], uuid.NewString())
	w.fetch()
	for _, id := range w.file {
		if !slices.Contains(w.kept(), id) {
			t.Errorf("%s is not kept", id)
		}
	}
	if n := len(w.kept()); n != len(w.file)+1 {
		t.Errorf("%d are kept", n)
	}
}

// TestFetch_OldStatesSayNothing: a status that was missing in the middle is kept, and is not the
// conversation's: that is the one of the last events.
func TestFetch_OldStatesSayNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fsm.ProtocolVersion).serve().more(250)
	w.says = map[string]string{w.file[180]: "finished"}
	check := func(what, status string) {
		t.Helper()
		w.fetch()
		if said := w.Store.View().Conversation("u1", talk).Said; said == nil || said.Status != status {
			t.Errorf("%s: the conversation says %+v, want %q", what, said, status)
		}
	}
	check("the first fetch", "finished")
	old := func() {
		id := uuid.NewString()
		w.file, w.says[id] = slices.Insert(w.file, 10, id), "running"
	}
	old()
	check("one in the middle", "finished")
	w.more(120)
	w.says[w.file[len(w.file)-1]] = "paused"
	check("two pages behind it", "paused")
	// The server has lost the last event, and answers from its first one on.
	w.file = w.file[:len(w.file)-1]
	old()
	w.more(1)
	w.says[w.file[len(w.file)-1]] = "stuck"
	check("others at the end", "stuck")
	for _, id := range w.file {
		if !slices.Contains(w.kept(), id) {
			t.Errorf("%s is not kept", id)
		}
	}
}

// TestFetch_LargeEvents: pages are made smaller until their answer can be read, and one event is cut.
func TestFetch_LargeEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fsm.ProtocolVersion).serve().more(12)
	w.size = 700 << 10
	w.fetch()
	w.size = 9 << 20
	w.more(1)
	w.fetch()
	if !slices.Equal(w.kept(), w.file) {
		t.Fatalf("%d of %d are kept", len(w.kept()), len(w.file))
	}
	chain := w.Store.View().EventChain("u1", talk)
	key, err := eventseal.Of(t.Context(), w.secrets, w.Store.View().User("u1").EventKey)
	if err != nil {
		t.Fatal(err)
	}
	_, text, err := key.Open(talk, w.stored[chain.Key][12])
	if err != nil || !bytes.Contains(text, []byte("bytes are kept]")) || !json.Valid(text) {
		t.Errorf("the large event is %d bytes, %v", len(text), err)
	}
}

// TestFetch_Fails: an error names what could not be fetched, and what was fetched stays.
func TestFetch_Fails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fsm.ProtocolVersion).serve().more(1)
	err := w.fetcher.Fetch(t.Context(), w.sandbox, w.url, "another")
	if err == nil || !strings.Contains(err.Error(), talk) {
		t.Errorf("another key: %v", err)
	}
	old := newWorld(t, fsm.VersionEvents-1).serve().more(1)
	if calls := old.fetch(); len(calls) != 0 {
		t.Errorf("below the version it took %q", calls)
	}
}

// counting counts the fetches of conversations.
type counting struct {
	agent.Client
	asked atomic.Int64
	fails atomic.Bool
}

func (c *counting) CountEvents(context.Context, string, string, string, string) (int, error) {
	if c.asked.Add(1); c.fails.Load() {
		return 0, &agent.Error{Op: "count events", Kind: agent.ErrUnreachable}
	}
	return 0, nil
}

// TestRun: each sandbox that runs is asked after its start, and again while it runs.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fsm.ProtocolVersion)
		agents := &counting{}
		agents.fails.Store(true)
		ref, err := w.secrets.Write(t.Context(), fsm.SandboxKeyPath("sb"), map[string]string{fsm.MemberKey: "key"})
		if err != nil || ref.Version != 1 {
			t.Fatal(ref, err)
		}
		w.run(agents)
		check := func(what string, after time.Duration, want int64) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := agents.asked.Load(); got != want {
				t.Errorf("%s: asked %d times, want %d", what, got, want)
			}
		}
		check("before it runs", time.Minute, 0)
		w.runs("sb", "a1")
		check("it runs, and can't be asked", 10*time.Second, 1)
		agents.fails.Store(false)
		check("it is tried again", time.Minute+5*time.Second, 2)
		check("nothing new", 9*time.Minute, 2)
		check("ten minutes later", 2*time.Minute, 3)
		w.runs("sb", "a2")
		check("after another start", 10*time.Second, 4)
	})
}

// slow answers when it is let, and counts those that wait.
type slow struct {
	agent.Client
	waiting, most atomic.Int64
	let           chan struct{}
}

func (s *slow) CountEvents(context.Context, string, string, string, string) (int, error) {
	return 1, nil
}

func (s *slow) Events(ctx context.Context, _, _, _, _ string) ([]json.RawMessage, string, error) {
	s.most.Store(max(s.most.Load(), s.waiting.Add(1)))
	defer s.waiting.Add(-1)
	select {
	case <-s.let:
	case <-ctx.Done():
	}
	return nil, "", ctx.Err()
}

// TestFetch_BoundsItsMemory: however many sandboxes are fetched at once, few answers are in memory.
func TestFetch_BoundsItsMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, fsm.ProtocolVersion)
		agents := &slow{let: make(chan struct{})}
		f := eventfetch.New(w.Store, w.Cluster, w.keeping, agents, w.secrets, slog.New(slog.DiscardHandler))
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := f.Fetch(t.Context(), w.sandbox, "", "key"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Fetch(ctx, w.sandbox, "", "key"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without room: %v", err)
		}
		close(agents.let)
		all.Wait()
		if most := agents.most.Load(); most > 4 {
			t.Errorf("%d answers at once", most)
		}
	})
}
