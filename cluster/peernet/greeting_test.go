package peernet

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// fakeHost is a host that answers as it is told.
type fakeHost struct {
	mine    Greeting
	older   bool
	answers []GreetingAnswer
}

func (g *fakeHost) Greet(to raft.ServerID) Greeting {
	mine := g.mine
	mine.To = string(to)
	return mine
}

func (g *fakeHost) Welcome(caller Greeting) GreetingAnswer {
	answer := GreetingAnswer{Greeting: g.mine, Refused: Mismatch(g.mine, caller)}
	if caller.To != g.mine.From {
		answer.Refused = "this is " + g.mine.From
	}
	return answer
}

func (g *fakeHost) Met(_ raft.ServerID, _ string, answer GreetingAnswer) {
	g.answers = append(g.answers, answer)
}
func (g *fakeHost) SpeaksOlder() bool { return g.older }

// TestGreeting_OnlyTheMemberThatWasCalledAnswers: over the peer port, with
// certificates, whoever differs in what both know is refused, and each says why.
func TestGreeting_OnlyTheMemberThatWasCalledAnswers(t *testing.T) {
	ca := authorityFor(t)
	for name, test := range map[string]struct {
		caller, called Greeting
		to, want       string
	}{
		"both know nothing": {Greeting{From: "a.1"}, Greeting{From: "b.1"}, "b.1", ""},
		"one knows nothing": {Greeting{From: "a.1", Cluster: "c", History: "h"}, Greeting{From: "b.1"}, "b.1", ""},
		"the same": {
			Greeting{From: "a.1", Cluster: "c", History: "h"},
			Greeting{From: "b.1", Cluster: "c", History: "h"},
			"b.1",
			"",
		},
		"a history and its child": {
			Greeting{From: "a.1", Cluster: "c", History: "h"},
			Greeting{From: "b.1", Cluster: "c", History: "i", Parents: []string{"h"}},
			"b.1",
			"",
		},
		"a child and its history": {
			Greeting{From: "a.1", Cluster: "c", History: "i", Parents: []string{"h"}},
			Greeting{From: "b.1", Cluster: "c", History: "h"},
			"b.1",
			"",
		},
		"another history": {
			Greeting{From: "a.1", Cluster: "c", History: "h"},
			Greeting{From: "b.1", Cluster: "c", History: "i"},
			"b.1",
			"neither follows",
		},
		"another cluster": {
			Greeting{From: "a.1", Cluster: "c"},
			Greeting{From: "b.1", Cluster: "d"},
			"b.1",
			"it is of cluster",
		},
		"its successor":             {Greeting{From: "a.1"}, Greeting{From: "b.2"}, "b.1", "this is b.2"},
		"speaking as another":       {Greeting{From: "z.1"}, Greeting{From: "b.1"}, "b.1", "certificate is another node's"},
		"an address without a name": {Greeting{From: "a.1"}, Greeting{From: "b.1"}, "", "names no member"},
	} {
		t.Run(name, func(t *testing.T) {
			a := portOf(t, ca, "a", &fakeHost{mine: test.caller})
			b := portOf(t, ca, "b", &fakeHost{mine: test.called})
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
				address = AddressFor(raft.ServerID(test.to), address)
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
		b := portOf(t, ca, "b", &fakeHost{mine: Greeting{From: "b.1"}, older: older})
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

// portOf opens a peer port for a node of that name.
func portOf(t *testing.T, ca PEM, name string, h Host) *Port {
	t.Helper()
	o := Options{Address: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}
	p, err := Open(o, creds(t, write(t, t.TempDir(), ca, issue(t, ca, name, time.Now(), time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	p.Identify(h)
	p.start()
	t.Cleanup(func() { _ = p.Close() })
	return p
}
