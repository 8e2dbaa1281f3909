package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// The roles of Member.Role.
const (
	RoleLeader   = "leader"
	RoleVoter    = "voter"
	RoleNonvoter = "nonvoter"
)

// Member is a Server with what it reported about itself.
type Member struct {
	Server
	// Role is one of the Role constants, as the asked node sees it.
	Role string `json:"role"`
	// Error says why the fields below are missing.
	Error string `json:"error,omitempty"`
	State string `json:"state,omitempty"`
	// KnownVersion is the newest protocol version the node knows.
	KnownVersion int    `json:"known_version,omitempty"`
	AppliedIndex uint64 `json:"applied_index,omitempty"`
	// Lag is how many log entries it is behind the newest index that any member reported.
	Lag *uint64 `json:"lag,omitempty"`
	// LastContact is the milliseconds since the leader heard it. It is nil without a leader, or when
	// the leader has not heard it in its term.
	LastContact *int64 `json:"last_contact_ms,omitempty"`
	// ClockAhead is by how many milliseconds its clock is ahead of the asked node's, give or take
	// ClockError, which is half of the call's duration.
	ClockAhead *int64 `json:"clock_ahead_ms,omitempty"`
	ClockError *int64 `json:"clock_error_ms,omitempty"`
	// EventsMissing is how many bytes of events it lacks, negative for not known yet. It fetches them.
	EventsMissing int64 `json:"events_missing,omitempty"`
	// EventsFull: its disk has no room for events, so the cluster takes none.
	EventsFull bool `json:"events_full,omitempty"`
	// Report is missing from members with an older program.
	Report *Report `json:"report,omitempty"`
}

// Members asks all members in parallel, for a second at most. A member that does not answer has an
// Error.
func (n *Node) Members(ctx context.Context) []Member {
	ctx, leave, err := n.enter(ctx, helloTimeout)
	if err != nil {
		return nil
	}
	defer leave()
	status := n.Status()
	members := make([]Member, len(status.Servers))
	answers := make([]helloResponse, len(status.Servers))
	var wg sync.WaitGroup
	for i, server := range status.Servers {
		members[i] = Member{Server: server, Role: roleOf(server, status.LeaderID)}
		if server.ID == status.ID {
			wg.Go(func() {
				answers[i] = n.ownHello(status)
				answers[i].Report = n.Report()
			})
			members[i].ClockAhead, members[i].ClockError = new(int64), new(int64)
			continue
		}
		wg.Go(func() {
			var err error
			begin := n.clock()
			answers[i], err = n.helloAsking(ctx, n.addresses.lookup(raft.ServerID(server.ID)), helloRequest{Report: true})
			took := n.clock().Sub(begin)
			if err != nil {
				members[i].Error = err.Error()
			} else if id := answers[i].Member.ID; id != server.ID {
				members[i].Error = fmt.Sprintf("%s answers at its address", id)
			} else if at := answers[i].Time; !at.IsZero() {
				members[i].ClockAhead = new(at.Sub(begin.Add(took / 2)).Milliseconds())
				members[i].ClockError = new((took/2 + time.Millisecond - 1).Milliseconds())
			}
		})
	}
	wg.Wait()
	complete(members, answers, status)
	return members
}

// ownHello is this node's own hello response.
func (n *Node) ownHello(s Status) helloResponse {
	return helloResponse{
		State:         s.State,
		Protocol:      s.KnownVersion,
		Applied:       s.AppliedIndex,
		Commit:        s.CommitIndex,
		Heard:         n.heard(),
		Life:          n.records.PassedStart(),
		Unfit:         n.MustNotLead() != nil,
		EventsMissing: n.eventsMissing(),
		EventsFull:    n.room.low.Load(),
	}
}

// heard returns the milliseconds since this node heard each member, while it leads.
func (n *Node) heard() map[string]int64 {
	t := n.terms.get()
	if t == nil {
		return nil
	}
	heard := n.contacts.ages(t.number, time.Now())
	heard[string(n.id)] = 0
	return heard
}

func roleOf(s Server, leader string) string {
	switch {
	case s.ID == leader:
		return RoleLeader
	case s.Voter:
		return RoleVoter
	}
	return RoleNonvoter
}

// complete fills the members from their answers. Contact times come from the leader's answer.
func complete(members []Member, answers []helloResponse, status Status) {
	newest := status.CommitIndex
	var heard map[string]int64
	for i := range members {
		if members[i].Error != "" {
			continue
		}
		newest = max(newest, answers[i].Commit, answers[i].Applied)
		if members[i].Role == RoleLeader {
			heard = answers[i].Heard
		}
	}
	for i := range members {
		m := &members[i]
		if ms, known := heard[m.ID]; known {
			m.LastContact = &ms
		}
		if m.Error != "" {
			continue
		}
		a := answers[i]
		m.State, m.KnownVersion, m.AppliedIndex = a.State, a.Protocol, a.Applied
		m.Lag, m.Report, m.EventsMissing, m.EventsFull = new(newest-a.Applied), a.Report, a.EventsMissing, a.EventsFull
	}
}
