package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// guestbook is a host that answers as it is told.
type guestbook struct {
	mine    greeting
	older   bool
	answers []greetingAnswer
}

func (g *guestbook) greet(to raft.ServerID) greeting {
	mine := g.mine
	mine.To = string(to)
	return mine
}

func (g *guestbook) welcome(caller greeting) greetingAnswer {
	answer := greetingAnswer{greeting: g.mine, Refused: stranger(g.mine, caller)}
	if caller.To != g.mine.From {
		answer.Refused = "this is " + g.mine.From
	}
	return answer
}

func (g *guestbook) met(_ raft.ServerID, _ string, answer greetingAnswer) {
	g.answers = append(g.answers, answer)
}
func (g *guestbook) speaksOlder() bool { return g.older }

// TestGreeting_OnlyTheMemberThatWasCalledAnswers: over the peer port, with
// certificates, whoever differs in what both know is refused, and each says why.
func TestGreeting_OnlyTheMemberThatWasCalledAnswers(t *testing.T) {
	ca := authorityFor(t)
	for name, test := range map[string]struct {
		caller, called greeting
		to, want       string
	}{
		"both know nothing":         {greeting{From: "a.1"}, greeting{From: "b.1"}, "b.1", ""},
		"one knows nothing":         {greeting{From: "a.1", Cluster: "c", History: "h"}, greeting{From: "b.1"}, "b.1", ""},
		"the same":                  {greeting{From: "a.1", Cluster: "c", History: "h"}, greeting{From: "b.1", Cluster: "c", History: "h"}, "b.1", ""},
		"a history and its child":   {greeting{From: "a.1", Cluster: "c", History: "h"}, greeting{From: "b.1", Cluster: "c", History: "i", Parents: []string{"h"}}, "b.1", ""},
		"a child and its history":   {greeting{From: "a.1", Cluster: "c", History: "i", Parents: []string{"h"}}, greeting{From: "b.1", Cluster: "c", History: "h"}, "b.1", ""},
		"another history":           {greeting{From: "a.1", Cluster: "c", History: "h"}, greeting{From: "b.1", Cluster: "c", History: "i"}, "b.1", "neither follows"},
		"another cluster":           {greeting{From: "a.1", Cluster: "c"}, greeting{From: "b.1", Cluster: "d"}, "b.1", "it is of cluster"},
		"its successor":             {greeting{From: "a.1"}, greeting{From: "b.2"}, "b.1", "this is b.2"},
		"speaking as another":       {greeting{From: "z.1"}, greeting{From: "b.1"}, "b.1", "certificate is another node's"},
		"an address without a name": {greeting{From: "a.1"}, greeting{From: "b.1"}, "", "names no member"},
	} {
		t.Run(name, func(t *testing.T) {
			a := portOf(t, ca, "a", &guestbook{mine: test.caller})
			b := portOf(t, ca, "b", &guestbook{mine: test.called})
			go func() {
				for {
					c, err := b.stream.Accept()
					if err != nil {
						return
					}
					_ = c.Close() // the port waits for it
				}
			}()
			address := b.Addr()
			if test.to != "" {
				address = addressFor(raft.ServerID(test.to), address)
			}
			c, err := a.stream.Dial(raft.ServerAddress(address), 5*time.Second)
			if err == nil {
				_ = c.Close()
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestGreeting_TheOlderProtocolEndsWithTheVersion: who names no members is let in
// until all know how to.
func TestGreeting_TheOlderProtocolEndsWithTheVersion(t *testing.T) {
	ca := authorityFor(t)
	for _, older := range []bool{true, false} {
		b := portOf(t, ca, "b", &guestbook{mine: greeting{From: "b.1"}, older: older})
		accepted := make(chan net.Conn, 1)
		go func() {
			if c, err := b.stream.Accept(); err == nil {
				accepted <- c
			}
		}()
		peer := creds(t, write(t, t.TempDir(), ca, issue(t, ca, "a", time.Now(), time.Hour)))
		c, err := dialPeer(t.Context(), peer, b.Addr(), protoOlder)
		if err != nil {
			t.Fatal(err)
		}
		if older {
			_ = (<-accepted).Close()
		} else if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the older protocol is spoken still")
		}
		_ = c.Close()
	}
}

// TestCallClient_MisdirectedCallsAreNotDone: a call names whom it is for.
func TestCallClient_MisdirectedCallsAreNotDone(t *testing.T) {
	ca := authorityFor(t)
	n := lonely(t)
	p := portOf(t, ca, "a", &guestbook{mine: greeting{From: string(n.id)}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, n.handle) }()
	c := newCallClient(creds(t, write(t, t.TempDir(), ca, issue(t, ca, "b", time.Now(), time.Hour))))
	c.self = "b.1"
	if _, err := c.call(t.Context(), addressFor("a.9", p.Addr()), callTerm, []byte("{}")); !errors.Is(err, errNotSent) {
		t.Errorf("for a member that is not there: %v", err)
	}
	if _, err := c.call(t.Context(), addressFor(n.id, p.Addr()), callRemove, []byte("[")); errors.Is(err, errNotSent) || err == nil {
		t.Errorf("for the member: %v", err)
	}
	c.self = "z.1"
	if _, err := c.call(t.Context(), addressFor(n.id, p.Addr()), callTerm, []byte("{}")); !errors.Is(err, errNotSent) {
		t.Errorf("by a member that the certificate is not of: %v", err)
	}
	c.close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// portOf opens a peer port for a node of that name.
func portOf(t *testing.T, ca PEM, name string, h host) *peerPort {
	t.Helper()
	cfg := DefaultConfig()
	cfg.NodeName, cfg.PeerAddress, cfg.Logger = name, "127.0.0.1:0", slog.New(slog.DiscardHandler)
	p, err := openPeerPort(cfg, creds(t, write(t, t.TempDir(), ca, issue(t, ca, name, time.Now(), time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	p.identify(h)
	p.start()
	t.Cleanup(func() { _ = p.Close() })
	return p
}
