// Package forgetest sends forged messages to the peer ports of a cluster, for tests.
package forgetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

const (
	// Thief is the user for whom forged commands make an operator's key.
	Thief = "thief"
	// forgedPatience bounds one peer call of Send.
	forgedPatience = time.Second
)

// Forger speaks to the peer ports of a cluster with a certificate of the cluster's CA.
type Forger struct {
	// ID is the member that its greeting names, of the certificate's node.
	ID string
	// Port makes peer calls, and Wire sends Raft's messages.
	Port *peernet.Port
	Wire raft.Transport
	// poses is the member that the greetings of new connections of Raft's name, nil for ID.
	poses atomic.Pointer[string]
	// NotMember is the index as of which answers to greetings say that the caller is no member, 0 for
	// none.
	NotMember atomic.Uint64
}

// New opens a port on a host. The certificate must be for the node of the id.
func New(files peernet.TLSFiles, host, id string) (*Forger, error) {
	return NewAt(files, net.JoinHostPort(host, "0"), id)
}

// NewAt is New at an address, which may be a member's.
func NewAt(files peernet.TLSFiles, address, id string) (*Forger, error) {
	logger := slog.New(slog.DiscardHandler)
	creds, err := peernet.LoadCredentials(files, "", logger)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	f := &Forger{ID: id}
	if f.Port, err = peernet.Open(peernet.Options{Listener: l, Logger: logger}, creds); err != nil {
		return nil, err
	}
	f.Port.Identify(f)
	f.Wire = f.Port.Transport(wholeAddresses{}, hclog.NewNullLogger())
	return f, nil
}

// Close closes the port.
func (f *Forger) Close() error { return f.Port.Close() }

// Header is a header of Raft's messages that names the forger, or whom it poses as.
func (f *Forger) Header(id string) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: []byte(f.Port.Addr())}
}

// Call makes a peer call.
func (f *Forger) Call(ctx context.Context, address, name, request string) (string, error) {
	answer, err := f.Port.Call(ctx, address, name, []byte(request))
	return string(answer), err
}

// Join asks a node to make a member of the id, at the forger's address.
func (f *Forger) Join(ctx context.Context, address, id string) error {
	request := fmt.Sprintf(`{"member":%s,"protocol":%d}`, claim(id, f.Port.Addr()), fsm.ProtocolVersion)
	answer, err := f.Call(ctx, address, "join", request)
	if err == nil && strings.Contains(answer, `"error"`) {
		err = errors.New(answer)
	}
	return err
}

// claim is a member as it introduces itself.
func claim(id, address string) string {
	return fmt.Sprintf(`{"id":%q,"name":%q,"address":%q}`, id, peernet.NodeName(raft.ServerID(id)), address)
}

// Greet implements peernet.Host.
func (f *Forger) Greet(to raft.ServerID) peernet.Greeting {
	from := f.ID
	if as := f.poses.Load(); as != nil {
		from = *as
	}
	return peernet.Greeting{From: from, To: string(to)}
}

// Welcome implements peernet.Host.
func (f *Forger) Welcome(peernet.Greeting) peernet.GreetingAnswer {
	as := f.NotMember.Load()
	return peernet.GreetingAnswer{Greeting: f.Greet(""), NotMember: as, Index: as}
}

// Met implements peernet.Host.
func (f *Forger) Met(raft.ServerID, string, peernet.GreetingAnswer) {}

// SpeaksOlder implements peernet.Host.
func (f *Forger) SpeaksOlder() bool { return false }

// wholeAddresses has no address of a member: a forger names the whole address.
type wholeAddresses struct{}

// ServerAddr implements raft.ServerAddressProvider.
func (wholeAddresses) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return "", fmt.Errorf("%s is called by its whole address", id)
}

// Target is a node that gets forged messages, as it was lately.
type Target struct {
	ID, Address  string
	Term, Commit uint64
	// Members are the ids of members, at least one.
	Members []string
}

// Send sends a node one message by chance: one of Raft's, in the forger's own name or in a member's, or
// a peer call. It returns what the node took, "" for nothing.
func (f *Forger) Send(ctx context.Context, to Target, chance *rand.Rand) (took string) {
	as, greets := f.ID, f.ID
	switch member := to.Members[chance.IntN(len(to.Members))]; chance.IntN(4) {
	case 0:
		as = member
	case 1:
		as, greets = member, member
	}
	f.poses.Store(&greets)
	m := forged{
		Forger: f, Target: to, header: f.Header(as), id: raft.ServerID(to.ID),
		at:   raft.ServerAddress(peernet.AddressFor(raft.ServerID(to.ID), to.Address)),
		term: []uint64{to.Term, to.Term + 1, to.Term + 1, to.Term + 7, math.MaxUint64 - 1}[chance.IntN(5)],
	}
	all := []func(context.Context) string{
		m.entry, m.entry, m.heartbeat, m.snapshot, m.vote, m.preVote, m.timeoutNow,
		m.records, m.plausible, m.command, m.hello, m.joins, m.starts, m.reads,
	}
	return all[chance.IntN(len(all))](ctx)
}

// SendAsMember is Send with the certificate of one of the target's members that leads no term of the
// target's: what such a member may not send. Votes and what members may read are left out.
func (f *Forger) SendAsMember(ctx context.Context, to Target, chance *rand.Rand) (took string) {
	m := forged{
		Forger: f, Target: to, header: f.Header(f.ID), id: raft.ServerID(to.ID),
		at:   raft.ServerAddress(peernet.AddressFor(raft.ServerID(to.ID), to.Address)),
		term: []uint64{to.Term, to.Term + 1, to.Term + 7, math.MaxUint64 - 1}[chance.IntN(4)],
	}
	m.Members = slices.DeleteFunc(slices.Clone(to.Members), func(id string) bool { return id == f.ID })
	all := []func(context.Context) string{
		m.entry,
		m.heartbeat,
		m.snapshot,
		m.timeoutNow,
		m.records,
		m.plausible,
		m.hello,
		m.joins,
		m.starts,
	}
	return all[chance.IntN(len(all))](ctx)
}

// forged is one message to a node. Its methods return what the node took, "" for nothing.
type forged struct {
	*Forger
	Target
	id     raft.ServerID
	at     raft.ServerAddress
	header raft.RPCHeader
	term   uint64
}

// call makes a peer call, for forgedPatience at most.
func (m forged) call(ctx context.Context, name, request string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, forgedPatience)
	defer cancel()
	return m.Call(ctx, m.Address, name, request)
}

// Key is a command that makes an operator's key for Thief.
func Key() ([]byte, error) {
	body := &fsm.APIKeyCreateBody{
		Lookup: strings.Repeat(Thief[:1], 12), Hash: strings.Repeat("0", 64), Name: "forged", UserID: Thief, Operator: true,
	}
	return fsm.NewCommand(uuid.NewString(), time.Now(), "", body).Encode()
}

func (m forged) entry(context.Context) string {
	key, err := Key()
	if err != nil {
		return err.Error()
	}
	request := &raft.AppendEntriesRequest{
		RPCHeader: m.header, Term: m.term, LeaderCommitIndex: m.Commit + 1,
		Entries: []*raft.Log{{Index: m.Commit + 1, Term: m.term, Type: raft.LogCommand, Data: key}},
	}
	var response raft.AppendEntriesResponse
	if err := m.Wire.AppendEntries(m.id, m.at, request, &response); err == nil && response.Success {
		return "an entry"
	}
	return ""
}

func (m forged) heartbeat(context.Context) string {
	var response raft.AppendEntriesResponse
	err := m.Wire.AppendEntries(m.id, m.at, &raft.AppendEntriesRequest{RPCHeader: m.header, Term: m.term}, &response)
	if err == nil && response.Success {
		return "a heartbeat"
	}
	return ""
}

func (m forged) snapshot(context.Context) string {
	var content bytes.Buffer
	if err := fsm.NewStore().Snapshot().Persist(&content); err != nil {
		return err.Error()
	}
	self := raft.Server{ID: raft.ServerID(m.Forger.ID), Address: raft.ServerAddress(m.Port.Addr())}
	alone := raft.Configuration{Servers: []raft.Server{self}}
	request := &raft.InstallSnapshotRequest{
		RPCHeader: m.header, SnapshotVersion: 1, Term: m.term, LastLogIndex: m.Commit + 1000, LastLogTerm: m.term,
		Configuration: raft.EncodeConfiguration(alone), ConfigurationIndex: 1, Size: int64(content.Len()),
	}
	var response raft.InstallSnapshotResponse
	if err := m.Wire.InstallSnapshot(m.id, m.at, request, &response, &content); err == nil && response.Success {
		return "a snapshot"
	}
	return ""
}

func (m forged) vote(context.Context) string {
	var response raft.RequestVoteResponse
	request := &raft.RequestVoteRequest{
		RPCHeader: m.header, Term: m.term, LastLogIndex: 1 << 40, LastLogTerm: 1 << 40, LeadershipTransfer: true,
	}
	if err := m.Wire.RequestVote(m.id, m.at, request, &response); err == nil && response.Granted {
		return "a request for a vote"
	}
	return ""
}

func (m forged) preVote(context.Context) string {
	var response raft.RequestPreVoteResponse
	request := &raft.RequestPreVoteRequest{RPCHeader: m.header, Term: m.term, LastLogIndex: 1 << 40, LastLogTerm: 1 << 40}
	if err := m.Wire.(raft.WithPreVote).RequestPreVote(m.id, m.at, request, &response); err == nil && response.Granted {
		return "a request for a pre-vote"
	}
	return ""
}

func (m forged) timeoutNow(context.Context) string {
	var response raft.TimeoutNowResponse
	if err := m.Wire.TimeoutNow(m.id, m.at, &raft.TimeoutNowRequest{RPCHeader: m.header}, &response); err == nil {
		return "a handover"
	}
	return ""
}

// records tells of a start of every member that no disk knows, and of entries that no log has.
func (m forged) records(ctx context.Context) string { return m.tell(ctx, m.Commit+1<<40) }

// plausible is records with entries that all logs have.
func (m forged) plausible(ctx context.Context) string { return m.tell(ctx, m.Commit) }

func (m forged) tell(ctx context.Context, acked uint64) string {
	all := map[string]any{m.Forger.ID: map[string]any{"acked": 1}}
	for _, id := range m.Members {
		all[id] = map[string]any{
			"start": map[string]any{"seq": 1 << 40, "nonce": "forged"}, "acked": acked, "address": m.Port.Addr(),
		}
	}
	request, err := json.Marshal(map[string]any{"records": all, "silent": map[string]int{m.Members[0]: 1 << 40}})
	if err != nil {
		return err.Error()
	}
	if _, err := m.call(ctx, "witness", string(request)); err == nil {
		return "records"
	}
	return ""
}

func (m forged) command(ctx context.Context) string {
	key, err := Key()
	if err != nil {
		return err.Error()
	}
	for _, name := range []string{"apply", "propose"} {
		if _, err := m.call(ctx, name, string(key)); err == nil {
			return "a command by " + name
		}
	}
	return ""
}

// hello claims to be another member. Then it claims the node's address for itself, as anybody may.
func (m forged) hello(ctx context.Context) string {
	const hello = `{"member":%s,"start":"forged"}`
	if _, err := m.call(ctx, "hello", fmt.Sprintf(hello, claim(m.Members[0], m.Port.Addr()))); err == nil {
		return "a member's hello"
	}
	_, _ = m.call(ctx, "hello", fmt.Sprintf(hello, claim(m.Forger.ID, m.Address)))
	return ""
}

// joins moves a member to the forger's address.
func (m forged) joins(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, forgedPatience)
	defer cancel()
	if err := m.Join(ctx, m.Address, m.Members[0]); err == nil {
		return "a member's move"
	}
	return ""
}

// starts reports a start of another member.
func (m forged) starts(ctx context.Context) string {
	const begin = `{"member":%s,"starts":[{"seq":1099511627776,"nonce":"forged"}],"last":1,"goes":true}`
	request := fmt.Sprintf(begin, claim(m.Members[0], m.Port.Addr()))
	if _, err := m.call(ctx, "begin", request); err == nil {
		return "a member's start"
	}
	return ""
}

// reads asks what only members may know or do.
func (m forged) reads(ctx context.Context) string {
	for _, name := range []string{
		peernet.CallIndex, peernet.CallTerm, "checksum", "records", "observe", "remove", "replace", "transfer",
	} {
		if _, err := m.call(ctx, name, "{}"); err == nil {
			return "the call " + name
		}
	}
	return ""
}
