package cluster

import (
	"context"
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
	// identityVersion is the protocol version from which members are told apart when
	// a connection is made, and no older protocol is spoken.
	identityVersion = 3
)

// ErrMisdirected is a handler's error for a call that is meant for another member,
// or comes from one that its certificate does not belong to. Nothing was done.
var ErrMisdirected = errors.New("the call is for another member")

// greeting is the first thing that each end of a connection between Rafts says: who
// it is, and what it takes the cluster to be. What it does not know it leaves out.
type greeting struct {
	Cluster string   `json:"cluster,omitempty"`
	History string   `json:"history,omitempty"`
	Parents []string `json:"parents,omitempty"`
	From    string   `json:"from"`
	To      string   `json:"to,omitempty"`
	// Start is drawn by each process at its start.
	Start string `json:"start,omitempty"`
}

// greetingAnswer is the greeting of who was called.
type greetingAnswer struct {
	greeting
	// Refused says why there is no connection.
	Refused string `json:"refused,omitempty"`
	// NotMember, when set, is an index as of which the caller is no member.
	// Index is the answering node's.
	NotMember uint64 `json:"not_member,omitempty"`
	Index     uint64 `json:"index,omitempty"`
}

// host is the node at one end.
type host interface {
	greet(to raft.ServerID) greeting
	// welcome judges who calls.
	welcome(caller greeting) greetingAnswer
	// met takes the answer to the greeting of a member at an address.
	met(to raft.ServerID, address string, answer greetingAnswer)
	// speaksOlder reports whether the protocol without greetings is spoken still.
	speaksOlder() bool
}

// addressFor is the address of one member: connections to it are for that member
// alone.
func addressFor(id raft.ServerID, address string) string { return string(id) + "@" + address }

// SplitAddress takes an address apart that is for one member; id is empty when it
// is for whoever is there.
func SplitAddress(address string) (id, hostPort string) {
	if id, hostPort, ok := strings.Cut(address, "@"); ok {
		return id, hostPort
	}
	return "", address
}

// introduceTo makes the exchange on a connection that this node has dialled.
func introduceTo(c io.ReadWriter, h host, to raft.ServerID, address string) error {
	if err := writeGreeting(c, h.greet(to)); err != nil {
		return err
	}
	var answer greetingAnswer
	if err := readGreeting(c, &answer); err != nil {
		return err
	}
	h.met(to, address, answer)
	switch {
	case answer.Refused != "":
		return fmt.Errorf("%s refuses the connection: %s", to, answer.Refused)
	case answer.From != string(to):
		return fmt.Errorf("%q answers where %s was called", answer.From, to)
	}
	return nil
}

// receive makes the exchange on a connection that a peer with a certificate for
// name has dialled.
func receive(c io.ReadWriter, h host, name string) error {
	var caller greeting
	if err := readGreeting(c, &caller); err != nil {
		return err
	}
	answer := greetingAnswer{greeting: h.greet(""), Refused: "the certificate is another node's"}
	if nodeName(raft.ServerID(caller.From)) == name {
		answer = h.welcome(caller)
	}
	if err := writeGreeting(c, answer); err != nil {
		return err
	}
	if answer.Refused != "" {
		return fmt.Errorf("%q is refused: %s", caller.From, answer.Refused)
	}
	return nil
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

// stranger says why two ends are not of one cluster, "" when they may be.
func stranger(mine, theirs greeting) string {
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

// parties are the ids in a call's headers.
type parties struct{ from, to string }

type partiesKey struct{}

// WithParties notes who makes a call and for which member it is, each empty when
// that is not known; a Network does it before it hands the call to its Handler.
func WithParties(ctx context.Context, from, to string) context.Context {
	if from == "" && to == "" {
		return ctx
	}
	return context.WithValue(ctx, partiesKey{}, parties{from, to})
}

// directed refuses a call that is not for this member, or not by the node whose
// certificate it came with.
func (n *Node) directed(ctx context.Context, name string) error {
	p, _ := ctx.Value(partiesKey{}).(parties)
	switch {
	case p.to != "" && p.to != string(n.id):
		return fmt.Errorf("%w: this is %s, not %s", ErrMisdirected, n.id, p.to)
	case p.from != "" && nodeName(raft.ServerID(p.from)) != name:
		return fmt.Errorf("%w: node %q can't call as %s", ErrMisdirected, name, p.from)
	}
	return nil
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
