package peernet

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// greetingBytes bounds each message of the exchange that begins a connection of
	// Raft's.
	greetingBytes = 8 << 10
)

// ErrMisdirected is a Handler's error for a call that is meant for another member, or comes
// from a member that the certificate is not of. The caller sees ErrNotSent.
var ErrMisdirected = errors.New("the call is for another member")

// ErrUnwelcome is a Handler's error for a call that its caller may not make. The caller sees
// ErrNotSent.
var ErrUnwelcome = errors.New("the caller may not make this call")

// Greeting is the first message of each end of a Raft connection: who it is, and which
// cluster and history it has. Unknown members are empty.
type Greeting struct {
	Cluster string   `json:"cluster,omitempty"`
	History string   `json:"history,omitempty"`
	Parents []string `json:"parents,omitempty"`
	From    string   `json:"from"`
	To      string   `json:"to,omitempty"`
	// Start is random, drawn by each process at its start.
	Start string `json:"start,omitempty"`
}

// GreetingAnswer is the greeting of the called end.
type GreetingAnswer struct {
	Greeting
	// Refused is why there is no connection.
	Refused string `json:"refused,omitempty"`
	// NotMember, when set, is an index at which the caller is no member. Index is the
	// answering node's applied index.
	NotMember uint64 `json:"not_member,omitempty"`
	Index     uint64 `json:"index,omitempty"`
}

// Host is the node at one end.
type Host interface {
	Greet(to raft.ServerID) Greeting
	// Welcome judges the calling member.
	Welcome(caller Greeting) GreetingAnswer
	// Met takes the answer to the greeting of a member at an address.
	Met(to raft.ServerID, address string, answer GreetingAnswer)
	// SpeaksOlder reports whether connections without a greeting are still allowed.
	SpeaksOlder() bool
}

// AddressFor is the address of one member: connections to it are for that member alone.
func AddressFor(id raft.ServerID, address string) string { return string(id) + "@" + address }

// SplitAddress splits an address made by AddressFor; id is empty when the address is for any
// member.
func SplitAddress(address string) (id, hostPort string) {
	if id, hostPort, ok := strings.Cut(address, "@"); ok {
		return id, hostPort
	}
	return "", address
}

// introduceTo greets on a connection that this node has dialled.
func introduceTo(c io.ReadWriter, h Host, to raft.ServerID, address string) error {
	if err := writeGreeting(c, h.Greet(to)); err != nil {
		return err
	}
	var answer GreetingAnswer
	if err := readGreeting(c, &answer); err != nil {
		return err
	}
	h.Met(to, address, answer)
	switch {
	case answer.Refused != "":
		return fmt.Errorf("%s refuses the connection: %s", to, answer.Refused)
	case answer.From != string(to):
		return fmt.Errorf("%q answers where %s was called", answer.From, to)
	}
	return nil
}

// isOf refuses a connection whose other end has not the certificate of a member's node.
func isOf(state tls.ConnectionState, id string) error {
	node, err := nodeOf(state.PeerCertificates[0])
	if err != nil {
		return err
	}
	if node != NodeName(raft.ServerID(id)) {
		return fmt.Errorf("node %q answers where %s was called", node, id)
	}
	return nil
}

// receive greets on a connection that a peer with a certificate for name has dialled, and gives the
// peer's member id.
func receive(c io.ReadWriter, h Host, name string) (member string, err error) {
	var caller Greeting
	if err := readGreeting(c, &caller); err != nil {
		return "", err
	}
	answer := GreetingAnswer{Greeting: h.Greet(""), Refused: "the certificate is another node's"}
	if NodeName(raft.ServerID(caller.From)) == name {
		answer = h.Welcome(caller)
	}
	if err := writeGreeting(c, answer); err != nil {
		return "", err
	}
	if answer.Refused != "" {
		return "", fmt.Errorf("%q is refused: %s", caller.From, answer.Refused)
	}
	return caller.From, nil
}

func writeGreeting(w io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(raw) > greetingBytes {
		return fmt.Errorf("a greeting of %d bytes", len(raw))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...))
	return err
}

func readGreeting(r io.Reader, v any) error {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return fmt.Errorf("reading a greeting: %w", err)
	}
	length := binary.BigEndian.Uint16(head[:])
	if length > greetingBytes {
		return fmt.Errorf("a greeting of %d bytes", length)
	}
	raw := make([]byte, length)
	if _, err := io.ReadFull(r, raw); err != nil {
		return fmt.Errorf("reading a greeting: %w", err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("reading a greeting: %w", err)
	}
	return nil
}

// Mismatch is why two ends are not of one cluster, "" when they may be.
func Mismatch(mine, theirs Greeting) string {
	switch {
	case mine.Cluster != "" && theirs.Cluster != "" && mine.Cluster != theirs.Cluster:
		return fmt.Sprintf("it is of cluster %s, this node of %s", theirs.Cluster, mine.Cluster)
	case mine.History == "" || theirs.History == "" || mine.History == theirs.History:
		return ""
	case slices.Contains(mine.Parents, theirs.History), slices.Contains(theirs.Parents, mine.History):
		return ""
	}
	return fmt.Sprintf("it has history %s, this node %s, and neither follows from the other", theirs.History, mine.History)
}

// parties are the member ids in a call's headers.
type parties struct{ from, to string }

type partiesKey struct{}

// WithParties adds to ctx the member that makes a call and the member that it is for, each
// empty when unknown. The port does so before it calls the Handler; a network in memory must
// too.
func WithParties(ctx context.Context, from, to string) context.Context {
	if from == "" && to == "" {
		return ctx
	}
	return context.WithValue(ctx, partiesKey{}, parties{from, to})
}

// Parties gives what WithParties added.
func Parties(ctx context.Context) (from, to string) {
	p, _ := ctx.Value(partiesKey{}).(parties)
	return p.from, p.to
}

type answererKey struct{}

// WithAnswerer has a call store the node whose certificate the answering end showed.
func WithAnswerer(ctx context.Context, node *string) context.Context {
	return context.WithValue(ctx, answererKey{}, node)
}

// Answered stores the node that answers a call for WithAnswerer. A network in memory must call it.
func Answered(ctx context.Context, node string) {
	if store, ok := ctx.Value(answererKey{}).(*string); ok {
		*store = node
	}
}

// exchange greets on a connection within ctx.
func exchange(ctx context.Context, c net.Conn, greet func() error) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if err := greet(); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}
