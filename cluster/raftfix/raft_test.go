package raftfix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// monotonic is a log store that Raft empties when it takes a snapshot.
type monotonic struct{ *raft.InmemStore }

func (monotonic) IsMonotonic() bool { return true }

// wire is a transport whose messages the test makes: those of the real one that
// are heartbeats go to the handler, the others to the consumer.
type wire struct {
	*peer
	consumer chan raft.RPC

	mu      sync.Mutex
	handler func(raft.RPC)
	hangs   map[raft.ServerID]chan struct{} // peers that do not answer until it closes
	refuses map[raft.ServerID]bool          // peers that refuse the next entries
	last    map[raft.ServerID]uint64        // the newest entry a peer was sent
}

func (w *wire) Consumer() <-chan raft.RPC { return w.consumer }

func (w *wire) SetHeartbeatHandler(fn func(raft.RPC)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler = fn
}

// RequestVote and the like are answered by whoever is asked.
func (w *wire) RequestVote(
	id raft.ServerID,
	_ raft.ServerAddress,
	args *raft.RequestVoteRequest,
	resp *raft.RequestVoteResponse,
) error {
	*resp = raft.RequestVoteResponse{RPCHeader: raft.RPCHeader{ID: []byte(id)}, Term: args.Term, Granted: true}
	return nil
}

func (w *wire) RequestPreVote(
	id raft.ServerID,
	_ raft.ServerAddress,
	args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse,
) error {
	*resp = raft.RequestPreVoteResponse{RPCHeader: raft.RPCHeader{ID: []byte(id)}, Term: args.Term, Granted: true}
	return nil
}

func (w *wire) AppendEntries(
	id raft.ServerID,
	_ raft.ServerAddress,
	args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	w.mu.Lock()
	hang := w.hangs[id]
	w.mu.Unlock()
	if n := len(args.Entries); n > 0 && hang != nil {
		<-hang
		return errors.New("hung up")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	*resp = raft.AppendEntriesResponse{
		RPCHeader: raft.RPCHeader{ID: []byte(id)},
		Term:      args.Term,
		LastLog:   w.last[id],
		Success:   true,
	}
	if n := len(args.Entries); n > 0 {
		if w.refuses[id] {
			w.refuses[id], resp.Success, resp.NoRetryBackoff = false, false, true
			return nil
		}
		w.last[id] = args.Entries[n-1].Index
	}
	return nil
}

// AppendEntriesPipeline gives c one.
func (w *wire) AppendEntriesPipeline(id raft.ServerID, _ raft.ServerAddress) (raft.AppendPipeline, error) {
	if id != "c" {
		return nil, raft.ErrPipelineReplicationNotSupported
	}
	return newPipe(w, id), nil
}

func (w *wire) hang(until chan struct{}, id raft.ServerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs[id] = until
}

func (w *wire) refuse(id raft.ServerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuses[id] = true
}

func (w *wire) got(id raft.ServerID) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last[id]
}

// tape is a state machine that remembers what it was given.
type tape struct {
	mu      sync.Mutex
	entries []string
}

func (m *tape) Apply(l *raft.Log) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries = append(m.entries, string(l.Data))
	return nil
}

func (m *tape) Snapshot() (raft.FSMSnapshot, error) { return nil, fmt.Errorf("none") }

func (m *tape) Restore(r io.ReadCloser) error {
	content, err := io.ReadAll(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries = nil
	for _, e := range bytes.Fields(content) {
		m.entries = append(m.entries, string(e))
	}
	return err
}

func (m *tape) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.entries) == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%s to %s", m.entries[0], m.entries[len(m.entries)-1])
}

// bench is one real Raft, the member a of three, behind an inbox.
type bench struct {
	t      *testing.T
	wire   *wire
	raft   *raft.Raft
	inbox  *Inbox
	logs   monotonic
	tape   *tape
	broken chan error
}

// without leaves the decorators out, to see what they hold off.
const without = false

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, logs: monotonic{raft.NewInmemStore()}, tape: &tape{}, broken: make(chan error, 1)}
	b.wire = &wire{
		peer: newPeer("b"), consumer: make(chan raft.RPC),
		hangs: map[raft.ServerID]chan struct{}{}, refuses: map[raft.ServerID]bool{}, last: map[raft.ServerID]uint64{},
	}
	conf := raft.DefaultConfig()
	conf.LocalID, conf.Logger = "a", hclog.NewNullLogger()
	stable, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	members := raft.Configuration{
		Servers: []raft.Server{{ID: "a", Address: b.wire.LocalAddr()}, {ID: "b", Address: "b:1"}, {ID: "c", Address: "c:1"}},
	}
	if err := raft.BootstrapCluster(conf, b.logs, stable, snapshots, b.wire, members); err != nil {
		t.Fatal(err)
	}
	b.inbox = NewInbox(&Pipelines{b.wire}, "a", b.logs, func(err error) { b.broken <- err })
	var transport raft.Transport = b.inbox
	if without {
		transport = b.wire
		if strings.Contains(t.Name(), "696") {
			transport = &Pipelines{b.wire}
		}
	}
	var err error
	if b.raft, err = raft.NewRaft(conf, b.tape, b.logs, stable, snapshots, transport); err != nil {
		t.Fatal(err)
	}
	if !without {
		b.inbox.Open(b.raft)
	}
	return b
}

func (b *bench) end() {
	if err := bounded(b.raft.Shutdown()); err != nil {
		b.t.Errorf("shutting down: %v", err)
	}
	b.inbox.Stop()
}

// bounded waits for a future for a minute.
func bounded(f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		return errors.New("it never ends")
	}
}

// send is what the real transport does with a message that came.
func (b *bench) send(command any, content string) raft.RPCResponse {
	b.t.Helper()
	answer := make(chan raft.RPCResponse, 1)
	rpc := raft.RPC{Command: command, RespChan: answer}
	if content != "" {
		rpc.Reader = bytes.NewBufferString(content)
	}
	b.wire.mu.Lock()
	handler := b.wire.handler
	b.wire.mu.Unlock()
	a, ok := command.(*raft.AppendEntriesRequest)
	if ok && handler != nil && a.PrevLogEntry == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0 {
		handler(rpc)
	} else {
		b.wire.consumer <- rpc
	}
	select {
	case r := <-answer:
		return r
	case <-time.After(time.Minute):
		b.t.Fatalf("no answer to %T", command)
		return raft.RPCResponse{}
	}
}

func headerOf(leader string) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(leader), Addr: []byte(leader + ":1")}
}

// write sends entries of a term as their leader would, with what is committed.
func (b *bench) write(leader string, term, first, last, prevTerm, commit uint64) *raft.AppendEntriesResponse {
	b.t.Helper()
	request := &raft.AppendEntriesRequest{
		RPCHeader:         headerOf(leader),
		Term:              term,
		PrevLogEntry:      first - 1,
		PrevLogTerm:       prevTerm,
		LeaderCommitIndex: commit,
	}
	for i := first; i <= last; i++ {
		request.Entries = append(request.Entries,
			&raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: fmt.Appendf(nil, "e%d", i)})
	}
	answer := b.send(request, "")
	if answer.Error != nil {
		b.t.Fatalf("entries %d to %d: %v", first, last, answer.Error)
	}
	return answer.Response.(*raft.AppendEntriesResponse)
}

// install sends a snapshot that ends with an entry of a term.
func (b *bench) install(leader string, term, last, lastTerm uint64) (*raft.InstallSnapshotResponse, error) {
	b.t.Helper()
	content := ""
	for i := uint64(2); i <= last; i++ {
		content += fmt.Sprintf("e%d ", i)
	}
	members := raft.EncodeConfiguration(b.raft.GetConfiguration().Configuration())
	answer := b.send(&raft.InstallSnapshotRequest{
		RPCHeader: headerOf(leader), SnapshotVersion: 1, Term: term, LastLogIndex: last, LastLogTerm: lastTerm,
		Configuration: members, ConfigurationIndex: 1, Size: int64(len(content)),
	}, content)
	response, _ := answer.Response.(*raft.InstallSnapshotResponse)
	return response, answer.Error
}

// has compares the log and the state machine with what they must hold.
func (b *bench) has(first, last, applied uint64) {
	b.t.Helper()
	f, _ := b.logs.FirstIndex()
	l, _ := b.logs.LastIndex()
	if f != first || l != last {
		b.t.Errorf("the log holds %d to %d, want %d to %d", f, l, first, last)
	}
	if got, want := b.tape.String(), fmt.Sprintf("e2 to e%d", applied); got != want {
		b.t.Errorf("the state is %s, want %s", got, want)
	}
}

// busy keeps Raft's own goroutine from everything until the function it gives is
// called.
func (b *bench) busy() (free func()) {
	busy, freed := make(chan struct{}), make(chan struct{})
	observer := raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		if _, vote := o.Data.(raft.RequestVoteRequest); vote {
			close(busy)
			<-freed
		}
		return false
	})
	b.raft.RegisterObserver(observer)
	go func() {
		b.wire.consumer <- raft.RPC{
			Command:  &raft.RequestVoteRequest{RPCHeader: headerOf("c"), Term: 1},
			RespChan: make(chan raft.RPCResponse, 1),
		}
	}()
	<-busy
	return func() { close(freed) }
}
