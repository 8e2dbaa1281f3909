package chaos

import "errors"

// Mutation is a fault that is built into the program. A drill that does not detect it proves
// nothing.
type Mutation struct {
	// Name is printed in the verdict.
	Name   string
	bodies []mutatedBody
}

type mutatedBody struct{ file, function, body string }

// StaleReads removes the leadership check that makes a leader's reads linearizable
// (raft.VerifyLeader's part).
var StaleReads = Mutation{"reads without the leadership check", []mutatedBody{
	{"cluster/read.go", "confirm", "return nil"},
}}

// NoCommandIDs removes the command-id table, which applies a repeated command only once.
var NoCommandIDs = Mutation{"no command-id table", []mutatedBody{
	{"fsm/command_ids.go", "recorded", "return Outcome{}, false"},
	{"fsm/view.go", "CommandResult", `return Result{}, nil, "", false`},
}}

// AnyAnswer accepts responses from any process at a member's address, so that a node with an
// emptied disk votes as its former member. Three checks prevent that, and each one suffices: of
// the responses, of the peer when a connection is made, and of the candidate for which a node
// without a configuration votes. This removes all three.
var AnyAnswer = Mutation{"answers of other members count", []mutatedBody{
	{"cluster/raftfix/answers.go", "check", "return nil"},
	{"cluster/peernet/greeting.go", "introduceTo", `
		if err := writeGreeting(c, h.Greet(to)); err != nil {
			return err
		}
		var answer GreetingAnswer
		return readGreeting(c, &answer)`},
	{"cluster/identity.go", "Welcome", "return peernet.GreetingAnswer{Greeting: n.greet(\"\"), Index: n.store.Index()}"},
	{"cluster/senders/senders.go", "admitCandidate", "return nil"},
}}

// AnySender believes Raft's messages and peer calls of whoever has a certificate.
var AnySender = Mutation{"messages of strangers count", []mutatedBody{
	{"cluster/senders/senders.go", "Admit", "return nil, nil"},
	{"cluster/calls.go", "admitCaller", "return nil"},
}}

// LateSnapshots passes every received snapshot to Raft, also one behind the node's state
// (hashicorp/raft issue 697).
var LateSnapshots = Mutation{"snapshots that come late are taken", []mutatedBody{
	{"cluster/raftfix/snapshots.go", "snapshot", "i.put(rpc)\nreturn nil"},
}}

// MissingItems omits half of the conversations from listings and changes nothing else.
var MissingItems = Mutation{"listings with gaps", []mutatedBody{
	{"fsm/conversation_table.go", "takes", "return c.ParentID == nil && c.ID[0] < '8'"},
}}

// MixedListings lists all conversations but the first in a later state than the first.
var MixedListings = Mutation{"listings that mix two states", []mutatedBody{
	{"httpapi/conversation.go", "listConversations", `
		v, err := c.View()
		if err != nil {
			return nil, nil, "", err
		}
		page := fsm.Page{After: request.PageIDOf(c.Query), Limit: request.LimitOf(c.Query)}
		rows, next := v.Conversations(c.Caller.User, conversationQuery(c.Query), page)
		for range 20 {
			if v, err = c.View(); err != nil {
				return nil, nil, "", err
			}
		}
		for i, row := range rows {
			if now := v.Conversation(c.Caller.User, row.ID); i > 0 && now != nil {
				rows[i] = now
			}
		}
		return rows, v, next, c.Check()`},
}}

// apply adds the mutation to an overlay.
func (m Mutation) apply(o *Overlay) error {
	var errs []error
	for _, b := range m.bodies {
		errs = append(errs, o.Mutate(b.file, b.function, b.body))
	}
	return errors.Join(errs...)
}

// Build makes the overlay of a drill: movable clocks, delayed messages, and the mutations. It
// returns the path for testcluster.Options.Overlay.
func Build(dir string, mutations ...Mutation) (string, error) {
	o, err := NewOverlay(dir)
	if err != nil {
		return "", err
	}
	for _, m := range mutations {
		if err := m.apply(o); err != nil {
			return "", err
		}
	}
	if err := errors.Join(o.HoldMessages(), o.MoveClocks()); err != nil {
		return "", err
	}
	return o.Write()
}

// SmallSegments has the log begin a new file every 64 KiB instead of every 64 MiB, so that it seals and
// deletes files all the time. It is no fault.
var SmallSegments = Mutation{"a log of small files", []mutatedBody{
	{"cluster/raftstore/wal.go", "openFiles", `
	if err := finishRotation(walDir); err != nil {
		return nil, err
	}
	return wal.Open(walDir, wal.WithLogger(logger.Named("wal")), wal.WithSegmentSize(64<<10))`},
}}

// FormerLog keeps the log in raft.db, as programs before decision 0063 did. It is no fault.
var FormerLog = Mutation{"the log in raft.db", []mutatedBody{
	{"cluster/raftstore/wal.go", "openLog", "return nil"},
}}
