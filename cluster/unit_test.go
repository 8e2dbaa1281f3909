package cluster

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftstore"
	"bivouac.dev/bivouac/fsm"
)

func TestReadBatcher_Join_SharesOnlyRoundsThatStartLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		var mu sync.Mutex
		var started []time.Time
		r := readBatcher{spawn: goroutines.Go}
		r.run = func() (uint64, error) {
			mu.Lock()
			started = append(started, time.Now())
			number := uint64(len(started))
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return number, nil
		}
		var calls sync.WaitGroup
		for i := range 200 {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				arrived := time.Now()
				index, err := r.join(context.Background(), t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if start := started[index-1]; start.Before(arrived) {
					t.Errorf("call of %v shared a round of %v", arrived, start)
				}
			})
		}
		calls.Wait()
		goroutines.Wait()
		if len(started) > 5 {
			t.Errorf("200 calls within 20 ms made %d rounds of 10 ms", len(started))
		}
	})
}

func TestReadBatcher_Join_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		r := readBatcher{spawn: goroutines.Go, run: func() (uint64, error) { time.Sleep(time.Hour); return 1, nil }}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := r.join(ctx, t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		goroutines.Wait()
	})
}

func TestConfig_Validate_NamesTheFieldAndTheBound(t *testing.T) {
	t.Parallel()
	good := DefaultConfig()
	good.NodeName, good.DataDir, good.BootstrapExpect = "a", "/x", 3
	good.TLS = peernet.TLSFiles{CAFile: "ca", CertFile: "cert", KeyFile: "key"}
	if err := good.Validate(); err != nil {
		t.Fatalf("a good configuration: %v", err)
	}
	for want, change := range map[string]func(*Config){
		`NodeName "A_1" must be a DNS label`:                     func(c *Config) { c.NodeName = "A_1" },
		"DataDir must be set":                                    func(c *Config) { c.DataDir = "" },
		`PeerAddress "x" must be host:port`:                      func(c *Config) { c.PeerAddress = "x" },
		`AdvertiseAddress "0.0.0.0:1" must be`:                   func(c *Config) { c.AdvertiseAddress = "0.0.0.0:1" },
		"TLS.CAFile, TLS.CertFile and TLS.KeyFile":               func(c *Config) { c.TLS.KeyFile = "" },
		"BootstrapExpect 10 must be 0 to 9":                      func(c *Config) { c.BootstrapExpect = 10 },
		"BootstrapExpect 0 needs RetryJoin":                      func(c *Config) { c.BootstrapExpect = 0 },
		`RetryJoin address "b" must be`:                          func(c *Config) { c.RetryJoin = []string{"b"} },
		"HeartbeatTimeout 1ms must be at least 5ms":              func(c *Config) { c.HeartbeatTimeout = time.Millisecond },
		"ElectionTimeout 1ms must be at least HeartbeatTimeout":  func(c *Config) { c.ElectionTimeout = time.Millisecond },
		"LeaderLeaseTimeout 1s must be at most HeartbeatTimeout": func(c *Config) { c.LeaderLeaseTimeout = time.Second },
		"ProposeTimeout 0s must be at least":                     func(c *Config) { c.ProposeTimeout = 0 },
		"must be at most 30s":                                    func(c *Config) { c.ReadTimeout = time.Minute },
		"SnapshotInterval 0s must be at least":                   func(c *Config) { c.SnapshotInterval = 0 },
		"SnapshotThreshold 0 must be at least 1":                 func(c *Config) { c.SnapshotThreshold = 0 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestNodeID_IsKeptAndBelongsToTheName(t *testing.T) {
	t.Parallel()
	stable := raftstore.NewInmem()
	id, err := nodeID(stable, "a")
	if err != nil || peernet.NodeName(id) != "a" {
		t.Fatalf("got %q, %v", id, err)
	}
	if again, err := nodeID(stable, "a"); err != nil || again != id {
		t.Errorf("again: %q, %v; want %q", again, err, id)
	}
	if _, err := nodeID(stable, "b"); err == nil || !strings.Contains(err.Error(), `belongs to node "a"`) {
		t.Errorf("another name: %v", err)
	}
}

func TestRaftLogger_KeepsLevelsAndKeys(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := raftLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	l.Debug("hidden")
	l.Named("wal").With("term", 3).Warn("odd thing", "error", errors.New("broken"), "last-index", 7)
	l.Info("votes", "needed", hclog.Fmt("%d of %d", 2, 3))
	got := out.String()
	for _, want := range []string{
		"level=WARN",
		`msg="raft: wal: odd thing"`,
		"last_index=7",
		"term=3",
		"error=broken",
		`msg="raft: votes" needed="2 of 3"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("log lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "hidden") {
		t.Errorf("log shows a hidden level:\n%s", got)
	}
}

func TestOutcome_TravelsAsData(t *testing.T) {
	t.Parallel()
	sent := []outcome{
		{},
		{err: fsm.Errorf(fsm.CodeProtocol, "too old")},
		{status: maybeCommitted},
		{status: committed, index: 7, term: 3, result: fsm.Result{Index: 5, Replayed: true}},
		{status: committed, index: 7, term: 3, err: fsm.Errorf(fsm.CodeConflict, "taken")},
	}
	for n := 1; n <= len(sent); n++ { // one alone is not in a list
		for first := 0; first+n <= len(sent); first++ {
			some := sent[first : first+n]
			b, err := encodeOutcomes(some)
			if err != nil {
				t.Fatal(err)
			}
			back := make([]outcome, n)
			if err := decodeOutcomes(b, back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(some, back, cmp.AllowUnexported(outcome{})); diff != "" {
				t.Errorf("%s came back with (-sent +back):\n%s", b, diff)
			}
		}
	}
	for _, bad := range []string{"", "{}", "[]", `{"certainty":"perhaps"}`} {
		if err := decodeOutcomes([]byte(bad), make([]outcome, 1)); err == nil {
			t.Errorf("%q was taken for one answer", bad)
		}
	}
	for _, bad := range []string{
		"",
		"{}",
		"[]",
		`[{"certainty":"done"}]`,
		`[{"certainty":"done"},{"certainty":"perhaps"}]`,
	} {
		if err := decodeOutcomes([]byte(bad), make([]outcome, 2)); err == nil {
			t.Errorf("%q was taken for two answers", bad)
		}
	}
}

// The results of a batch of small commands may be larger than an answer may be.
func TestOutcome_TooMuchForOneAnswerIsUnknownAndNotLost(t *testing.T) {
	t.Parallel()
	const count = 12
	large := &fsm.StartTask{Request: fsm.StartRequest{Title: new(strings.Repeat("x", 1<<20))}}
	sent := make([]outcome, count)
	for i := range sent {
		sent[i] = outcome{status: committed, index: 9, result: fsm.Result{Index: uint64(i), StartTask: large}}
	}
	b, err := encodeOutcomes(sent)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > peernet.MaxCallBytes {
		t.Fatalf("the answer has %d bytes, at most %d travel", len(b), peernet.MaxCallBytes)
	}
	back := make([]outcome, count)
	if err := decodeOutcomes(b, back); err != nil {
		t.Fatal(err)
	}
	if back[0].status != committed || back[0].result.StartTask == nil {
		t.Errorf("the first is %+v: repeating would never get anywhere", back[0].status)
	}
	for i, a := range back {
		if a.status == notCommitted || a.status == committed && a.result.Index != uint64(i) {
			t.Errorf("number %d: certainty %v, index %d", i, a.status, a.result.Index)
		}
	}
}

// unplugged is a network nobody is on.
type unplugged struct{ Network }

func (unplugged) Addr() string { return "a:1" }

func (unplugged) Call(context.Context, string, string, []byte) ([]byte, error) {
	return nil, peernet.NotSent(errors.New("unplugged"))
}

// lonely is a node that was never run.
func lonely(t testing.TB) *Node {
	t.Helper()
	logs := raftstore.NewInmem()
	cfg := DefaultConfig()
	cfg.NodeName, cfg.BootstrapExpect = "a", 3
	n, err := NewWith(cfg, fsm.NewStore(),
		raftstore.Store{Logs: logs, Stable: logs, Snapshots: raft.NewInmemSnapshotStore()}, unplugged{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNode_Handle_RefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	impostor := `{"member":{"id":"c.1","name":"c","address":"c:1"}}`
	for name, test := range map[string]struct{ call, request, want string }{
		"an unknown call":          {"reboot", "{}", `unknown peer call "reboot"`},
		"no JSON":                  {callHello, "{", "reading the call"},
		"speaking as another":      {callHello, impostor, `node "b" can't speak as "c"`},
		"asking a promise for one": {callPromise, impostor, `node "b" can't speak as "c"`},
		"joining as another":       {callJoin, impostor, `node "b" can't join as "c"`},
		"joining with another's id": {
			callJoin,
			`{"member":{"id":"c.1","name":"b","address":"b:1"}}`,
			"does not belong to the name",
		},
		"greeting with another's id": {callHello, `{"member":{"id":"c.1","name":"b","address":"b:1"}}`, "can't speak as"},
	} {
		answer, err := n.handle(t.Context(), "b", test.call, []byte(test.request))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: answered %q, %v; want %q", name, answer, err, test.want)
		}
	}
}

func TestNode_Handle_CommandsItDoesNotKnowAreRefusedBeforeTheLog(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	for request, code := range map[string]fsm.Code{
		`moon.fly{"id":"x","type":"moon.fly",` +
			`"time":"2026-01-01T00:00:00Z","body":{}}`: fsm.CodeProtocol,
		`protocol.raise{"id":"x","type":"protocol.raise",` +
			`"time":"2026-01-01T00:00:00Z","body":{"version":0}}`: fsm.CodeInvalid,
		strings.Repeat("x",
			fsm.MaxCommandBytes+1): fsm.CodeInvalid,
	} {
		answer, err := n.handle(t.Context(), "a", callApply, []byte(request))
		if err != nil {
			t.Fatal(err)
		}
		a := make([]outcome, 1)
		if err := decodeOutcomes(answer, a); err != nil || a[0].status != notCommitted || fsm.CodeOf(a[0].err) != code {
			t.Errorf("%.60s: %v (%v), %v; want %s", request, a[0].err, a[0].status, err, code)
		}
	}
}

func TestNode_Handle_OnePromiseAtATime(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	ask := func(from string) promiseResponse {
		request := promiseRequest{member{ID: from + ".1", Name: from, Address: from + ":1"}}
		response, err := n.handlePromise(from, request)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	for _, test := range []struct {
		from string
		want bool
	}{{"b", true}, {"c", false}, {"b", true}} {
		if got := ask(test.from); got.Granted != test.want {
			t.Errorf("%s: %+v", test.from, got)
		}
	}
	// A node that voted has state and promises nothing any more.
	if err := n.storage.Stable.SetUint64([]byte("CurrentTerm"), 2); err != nil {
		t.Fatal(err)
	}
	if got := ask("b"); got.Granted {
		t.Error("a node with state gave its promise")
	}
}

func TestNode_Confirm_BelievesAVotersOwnWord(t *testing.T) {
	t.Parallel()
	n := lonely(t)
	servers := []raft.Server{{ID: n.id}, {ID: "b.1"}, {ID: "c.1"}, {ID: "d.1", Suffrage: raft.Nonvoter}}
	four := &term{number: 4, ctx: t.Context()}
	for told, want := range map[termResponse]error{
		{ID: "b.1", Term: 4}: nil, {ID: "c.1", Term: 3}: nil,
		{ID: "b.1", Term: 5}: errNewerTerm,
		{}:                   errNotLeader, {
			ID:   "d.1",
			Term: 4,
		}: errNotLeader, {ID: "x.1", Term: 4}: errNotLeader, {ID: string(n.id), Term: 4}: errNotLeader,
	} {
		if err := n.confirm(four, servers, told); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("told %+v: %v, want %v", told, err, want)
		}
	}
	five := append(servers, raft.Server{ID: "e.1"}, raft.Server{ID: "f.1"})
	if err := n.confirm(four, five, termResponse{ID: "b.1", Term: 4}); !errors.Is(err, errNotLeader) {
		t.Errorf("two of five: %v", err)
	}
}

// A member that lags says of a newcomer that it is none. What the newcomer is sent
// later speaks against that; a removed node is sent nothing.
func TestIdentity_OutsideUntilMoreIsApplied(t *testing.T) {
	t.Parallel()
	i := identity{notMember: 781}
	for applied, want := range map[uint64]uint64{0: 781, 780: 781, 781: 781, 782: 0} {
		if got := i.notMemberSince(applied); got != want {
			t.Errorf("with %d applied: outside as of %d, want %d", applied, got, want)
		}
	}
}

// TestPeerClient_Propose_ALargeCommandIsRefusedAsByTheNode: before anything is sent.
func TestPeerClient_Propose_ALargeCommandIsRefusedAsByTheNode(t *testing.T) {
	t.Parallel()
	cmd := fsm.NewCommand("large", time.Now(), "", &fsm.APIKeyCreateBody{
		Lookup: "k00000000001", Hash: strings.Repeat("0", 64), Name: "key", UserID: "ada",
	})
	cmd.Fingerprint = strings.Repeat("x", fsm.MaxCommandBytes)
	if _, err := new(PeerClient).Propose(t.Context(), cmd); fsm.CodeOf(err) != fsm.CodeInvalid {
		t.Errorf("%.200v; want %s", err, fsm.CodeInvalid)
	}
}

// TestNode_Propose_AnOldLeadersErrorNamesTheVersion: a leader that does not know a type says only that
// it is too old.
func TestNode_Propose_AnOldLeadersErrorNamesTheVersion(t *testing.T) {
	t.Parallel()
	n := &Node{store: fsm.NewStore()}
	old := fsm.Errorf(fsm.CodeProtocol, `unknown command type "sandbox.share"`)
	share := fsm.NewCommand("1", time.Now(), "ada", &fsm.SandboxShareBody{})
	if err := n.namesVersion(share, old); fsm.CodeOf(err) != fsm.CodeProtocol ||
		!strings.Contains(err.Message, "sandbox.share needs protocol version 5 and the cluster is at 1") {
		t.Errorf("%v", err)
	}
	touch := fsm.NewCommand("2", time.Now(), "", &fsm.SandboxTouchBody{})
	other := fsm.Errorf(fsm.CodeInvalid, "no")
	if n.namesVersion(touch, old) != old || n.namesVersion(share, other) != other {
		t.Error("another error is replaced")
	}
}

// TestTermWatch_NoTermThatHasEnded: the disk stalls, the term is closed, and openTerm comes late.
func TestTermWatch_NoTermThatHasEnded(t *testing.T) {
	t.Parallel()
	var w termWatch
	ctx, end := context.WithCancel(t.Context())
	w.set(&term{number: 1, ctx: ctx})
	if w.get() == nil {
		t.Fatal("the term is not published")
	}
	end()
	w.set(nil)
	w.set(&term{number: 1, ctx: ctx})
	if w.get() != nil {
		t.Error("a term that has ended is published")
	}
}
