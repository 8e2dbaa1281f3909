package nemesis

import "errors"

// Mutation is a fault built into the program on purpose: a drill that does not
// notice it proves nothing.
type Mutation struct {
	// Name is for the verdict.
	Name   string
	bodies []mutatedBody
}

type mutatedBody struct{ file, function, body string }

// StaleReads leaves out what makes a leader's read linearizable: asking a
// majority whether it still leads (raft.VerifyLeader's part).
var StaleReads = Mutation{"reads without the leadership check", []mutatedBody{
	{"cluster/read.go", "confirm", "return nil"},
}}

// NoCommandIDs leaves out the command-id table, by which a command that comes
// twice is applied once.
var NoCommandIDs = Mutation{"no command-id table", []mutatedBody{
	{"fsm/command_ids.go", "recorded", "return Outcome{}, false"},
	{"fsm/view.go", "CommandResult", `return Result{}, nil, "", false`},
}}

// AnyAnswer counts the answer of whoever answers at a member's address, so that a
// node whose disk was emptied votes as the member that it had been. Three checks
// hold that off and each does alone: of the answers, of who is called when a
// connection is made, and of whom a node without a configuration votes for. All
// are left out.
var AnyAnswer = Mutation{"answers of other members count", []mutatedBody{
	{"cluster/raftfix/answers.go", "check", "return nil"},
	{"cluster/greeting.go", "introduceTo", `
		if err := writeGreeting(c, h.greet(to)); err != nil {
			return err
		}
		var answer greetingAnswer
		return readGreeting(c, &answer)`},
	{"cluster/identity.go", "welcome", "return greetingAnswer{greeting: n.greet(\"\"), Index: n.store.Index()}"},
	{"cluster/held.go", "mayVote", "return true"},
}}

// LateSnapshots hands Raft every snapshot that comes, also one that is behind what
// the node has (hashicorp/raft issue 697).
var LateSnapshots = Mutation{"snapshots that come late are taken", []mutatedBody{
	{"cluster/raftfix/snapshots.go", "snapshot", "i.put(rpc)\nreturn nil"},
}}

// MissingItems leaves half of the conversations out of listings, and of nothing
// else.
var MissingItems = Mutation{"listings with gaps", []mutatedBody{
	{"fsm/conversation_table.go", "takes", "return c.ParentID == nil && c.ID[0] < '8'"},
}}

// MixedListings shows the first conversation of a listing as it was a moment
// before the others.
var MixedListings = Mutation{"listings that mix two states", []mutatedBody{
	{"httpapi/conversation.go", "listConversations", `
		v, err := c.view()
		if err != nil {
			return nil, nil, "", err
		}
		rows, next := v.Conversations(c.who.user, conversationQuery(c.query), fsm.Page{After: c.query.pageID(), Limit: c.query.limit()})
		for range 20 {
			if v, err = c.view(); err != nil {
				return nil, nil, "", err
			}
		}
		for i, row := range rows {
			if now := v.Conversation(c.who.user, row.ID); i > 0 && now != nil {
				rows[i] = now
			}
		}
		return rows, v, next, c.check()`},
}}

// apply builds the mutation in.
func (m Mutation) apply(o *Overlay) error {
	var errs []error
	for _, b := range m.bodies {
		errs = append(errs, o.Mutate(b.file, b.function, b.body))
	}
	return errors.Join(errs...)
}

// Build makes the overlay of a drill: clocks that can be moved, messages that
// can be held back, and the mutations. It gives the path for fleet.Options.Overlay.
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
