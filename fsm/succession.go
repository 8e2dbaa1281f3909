package fsm

import (
	"fmt"
	"slices"
	"time"
)

// IndexStep is how far beyond the highest known index a state from a backup or from one surviving
// disk begins. It exceeds every lost index that a client may have seen, so that indexes never go
// backwards.
const IndexStep = 1 << 40

// Succession says how a state becomes the first of a new history.
type Succession struct {
	// ID is random. At is the time of the change.
	ID string
	At time.Time
	// Kind is FindingRestored or FindingRecovered. Detail says where the state comes from. Both become
	// the hold's first finding.
	Kind, Detail string
	// Index is where the new history begins, above the state's index.
	Index uint64
	// Term is the Raft term before the next one to open, if Raft's terms are not the state's. 0 keeps
	// the state's.
	Term uint64
	// SuspendKeys suspends every API key except KeepKey.
	SuspendKeys bool
	// KeepKey is valid afterwards, whether the state knows it or not. nil for none.
	KeepKey *APIKey
	// Events are the chains whose events are lost, with what is left of them by their keys.
	Events map[ChainKey]EventChain
	// Revoked certificates stay revoked, whether the state knows them or not.
	Revoked []RevokedCertificate
}

// Succeeded is what Succeed changed.
type Succeeded struct {
	// History is the new one. Index is where it begins, From where the former state ended.
	History History `json:"history"`
	Index   uint64  `json:"index"`
	From    uint64  `json:"from"`
	// Sandboxes counts those that stay, Members the members of warm pools that were dropped.
	Sandboxes int `json:"sandboxes"`
	Members   int `json:"warm_members_dropped"`
	// Suspended counts the API keys that were suspended, Unknown the Idempotency-Keys whose outcome is
	// now unknown.
	Suspended int `json:"keys_suspended"`
	Unknown   int `json:"idempotency_keys_unknown"`
	// Raised is set when the state was below protocol version 3.
	Raised bool `json:"raised,omitempty"`
}

// Succeed makes the state the first of a new history, for a recovery or a restore. No other
// goroutine may use the store yet. On an error nothing has changed.
//
// Nothing that the state implies about the time after it is valid any more. The last term is
// closed, so that things born later in it are strangers. There is a hold. Earlier commands and
// Idempotency-Keys have an unknown outcome. Members of warm pools are dropped, because they may
// have been claimed since, and so are sessions, which may have ended. Job versions are not reverted
// to. A state below protocol version 3 is raised.
func (s *Store) Succeed(n Succession) (Succeeded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.View()
	if err := n.check(old); err != nil {
		return Succeeded{}, err
	}
	at := n.At.UTC().Truncate(time.Microsecond)
	t := &transaction{
		store: s, before: old, txn: s.db.Txn(true), meta: old.meta, index: old.index, now: at,
		settings: map[string]*Settings{}, cmd: Command{Time: at},
	}
	defer t.txn.Abort()
	done := Succeeded{Index: n.Index, From: old.index, Raised: old.meta.History == nil}
	if done.Raised {
		t.meta.ProtocolVersion = max(t.meta.ProtocolVersion, VersionHistory)
		t.cmd.ID, t.meta.LastCommand = n.ID+" raise", t.index
		t.beginHistory()
	}
	t.succeed(n)
	done.History = t.meta.History.History
	t.index = n.Index
	done.Members = t.dropMembers()
	done.Sandboxes = t.forgetJobs()
	done.Suspended = t.succeedKeys(n)
	t.cutEvents(n.Events)
	t.endAllSessions()
	done.Unknown = t.forgetOutcomes(n)
	t.txn.Commit()
	s.commands = newCommandWindow()
	s.publish(&View{index: n.Index, meta: t.meta, txn: s.db.Txn(false), commands: s.commands, keys: n.Index},
		&epoch{began: Changes{All: true}})
	return done, nil
}

// check refuses an invalid succession.
func (n *Succession) check(v *View) error {
	switch {
	case n.ID == "" || n.At.IsZero():
		return fmt.Errorf("a succession needs an id and a time")
	case n.Kind != FindingRestored && n.Kind != FindingRecovered:
		return fmt.Errorf("a succession needs a kind, not %q", n.Kind)
	case n.Index <= v.index:
		return fmt.Errorf("the new history would begin at index %d and the state is at %d", n.Index, v.index)
	case v.meta.ClusterID == "":
		return fmt.Errorf("the state is no cluster's: no term was ever opened in it")
	}
	if k := n.KeepKey; k != nil {
		if known := v.APIKeyByLookup(k.Lookup); known != nil && known.Hash != k.Hash {
			return fmt.Errorf("the state has another API key with the lookup part %s: use another key", k.Lookup)
		}
	}
	return nil
}

// succeed closes the last term and begins the new history with a hold.
func (t *transaction) succeed(n Succession) {
	next := t.meta.History.succeed(n.ID, t.now)
	terms := next.Terms
	if len(terms) >= maxTerms {
		terms = terms[len(terms)-maxTerms+1:]
	}
	next.Terms = slices.Clone(terms)
	next.Terms[len(terms)-1].Last = t.meta.LastCommand
	next.Terms = append(next.Terms, TermRecord{
		Term: t.meta.Term, Nonce: nonceOf(n.ID + " term"), Index: t.index + 1, Time: t.now,
	})
	findings := []Finding{{Kind: n.Kind, Detail: n.Detail}}
	if next.Hold != nil {
		findings = append(findings, next.Hold.Findings[:min(len(next.Hold.Findings), maxFindings-1)]...)
	}
	next.Hold = &Hold{Index: n.Index, Since: t.now, Findings: findings}
	t.meta.History, t.meta.LastCommand = next, n.Index
	if n.Term > 0 {
		t.meta.Term = n.Term
	}
	t.meta.Forgotten = later(t.meta.Forgotten, t.now)
	t.meta.Revoked = revokedIn(t.meta.Revoked, n.Revoked)
}

// revokedIn returns the certificates that are revoked in either list.
func revokedIn(old, more []RevokedCertificate) []RevokedCertificate {
	all := slices.Clone(old)
	for _, c := range more {
		if !slices.ContainsFunc(all, c.same) {
			all = append(all, c)
		}
	}
	return all
}

// dropMembers drops the members of warm pools, because the state can't say whether they have been
// claimed since. What Nomad runs of them becomes orphans, which a hold keeps.
func (t *transaction) dropMembers() int {
	var members []*Sandbox
	for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexID, nil) {
		if s.Member() && s.Desired != DesiredDeleted {
			members = append(members, s)
		}
	}
	for _, s := range members {
		drop(t, tableSandboxes, s)
		for _, kind := range []string{OrphanJob, OrphanWorkspace} {
			t.noteOrphan(Orphan{Sandbox: s.ID, Kind: kind, Reason: OrphanUnowned, Birth: s.Birth.String()})
		}
	}
	return len(members)
}

// forgetJobs clears which job version ran well, because a later version may have run since. It
// returns the number of sandboxes.
func (t *transaction) forgetJobs() int {
	var all []*Sandbox
	for s := range withPrefix[Sandbox](t.txn, tableSandboxes, indexID, nil) {
		all = append(all, s)
	}
	for _, old := range all {
		if old.Status.Job.Registered {
			s := *old
			s.Status.Job.Registered = false
			put(t, tableSandboxes, old, &s)
		}
	}
	return len(all)
}

// cutEvents makes chains what is left of them.
func (t *transaction) cutEvents(left map[ChainKey]EventChain) {
	var all []*Conversation
	for c := range withPrefix[Conversation](t.txn, tableConversations, indexID, nil) {
		if c.Events != nil {
			if _, lost := left[c.Events.Key]; lost {
				all = append(all, c)
			}
		}
	}
	for _, old := range all {
		c, chain := *old, left[old.Events.Key]
		if c.Events = nil; chain.Number > 0 {
			c.Events = &chain
		}
		put(t, tableConversations, old, &c)
	}
}

// succeedKeys suspends the API keys and adds the one that stays valid.
func (t *transaction) succeedKeys(n Succession) (suspended int) {
	keep := n.KeepKey
	var all []*APIKey
	for k := range withPrefix[APIKey](t.txn, tableAPIKeys, indexID, nil) {
		all = append(all, k)
	}
	known := false
	for _, old := range all {
		k := *old
		switch {
		case keep != nil && old.Lookup == keep.Lookup:
			known = true
			k.SuspendedAt, k.RevokedAt, k.Disabled = nil, nil, false
		case n.SuspendKeys && old.RevokedAt == nil && old.SuspendedAt == nil:
			k.SuspendedAt = &t.now
			suspended++
		default:
			continue
		}
		put(t, tableAPIKeys, old, &k)
	}
	if keep != nil {
		t.readmit(keep.UserID)
	}
	if keep != nil && !known {
		t.meta.LastAPIKeyID++
		k := *keep
		k.ID, k.SuspendedAt, k.RevokedAt, k.Disabled = t.meta.LastAPIKeyID, nil, nil, false
		put(t, tableAPIKeys, nil, &k)
		if first[User](t.txn, tableUsers, indexID, []byte(k.UserID)) == nil {
			put(t, tableUsers, nil, &User{ID: k.UserID, CreatedAt: t.now})
		}
	}
	return suspended
}

// readmit enables the user of the key that stays valid.
func (t *transaction) readmit(user string) {
	if old := first[User](t.txn, tableUsers, indexID, []byte(user)); old != nil && old.DisabledAt != nil {
		u := *old
		u.DisabledAt = nil
		put(t, tableUsers, old, &u)
	}
}

// forgetOutcomes makes the outcome of every client's command unknown: the state may have moved on
// after the command and been set back.
func (t *transaction) forgetOutcomes(n Succession) int {
	what := "restored from a backup"
	if n.Kind == FindingRecovered {
		what = "recovered from one disk"
	}
	var all []*commandRecord
	for r := range withPrefix[commandRecord](t.txn, tableClientCommands, indexID, nil) {
		all = append(all, r)
	}
	for _, old := range all {
		r := *old
		r.Result = Result{Index: old.Result.Index}
		r.Err = Errorf(CodeOutcomeUnknown,
			"the state was %s after this was first asked for: look what is there, "+
				"and repeat it with another Idempotency-Key if need be", what)
		u := t.store.usageOf(r.UserID)
		u.clientWeight += r.weight() - old.weight()
		t.account(resourceUseOf(&t.meta, old), resourceUseOf(&t.meta, &r))
		must(t.txn.Insert(tableClientCommands, &r))
	}
	return len(all)
}
