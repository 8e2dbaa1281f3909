package fsm

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// afterwards returns a succession of a state, half a minute after the fixture's time.
func afterwards(v *View, at time.Time) Succession {
	return Succession{
		ID: "act", At: at, Kind: FindingRestored, Detail: "from a backup", Index: v.Index() + IndexStep,
	}
}

// genSucceeded returns a state of some history, the entries after it, and a succession.
func genSucceeded(r *rapid.T, t testing.TB) (s *Store, entries []Entry, n Succession) {
	s = NewStore()
	entries = []Entry{
		{0, NewCommand("open", testEpoch, "", &TermOpenBody{Term: 7, Node: "n1", ClusterID: "test", Nonce: "first"})},
	}
	if rapid.Bool().Draw(r, "with history") {
		entries = append(entries, Entry{0, NewCommand("raise", testEpoch, "", &ProtocolRaiseBody{Version: VersionHistory})})
	}
	entries = append(entries, genHistory(60).Draw(r, "log")...)
	now := testEpoch
	for _, e := range recodeAll(t, entries) {
		s.ApplyBatch([]Entry{e})
		now = later(now, e.Command.Time)
	}
	n = afterwards(s.View(), now.Add(time.Second))
	n.SuspendKeys = rapid.Bool().Draw(r, "suspend")
	return s, entries, n
}

// TestSucceed_WhatComesOfAnyState: from any state the new one is consistent, has a hold, keeps
// every row except warm members, and contains nothing later.
func TestSucceed_WhatComesOfAnyState(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s, entries, n := genSucceeded(r, t)
		before, twin, rows := s.View(), restored(t, s), dump(s)
		done, err := s.Succeed(n)
		if err != nil {
			r.Fatal(err)
		}
		if _, err := twin.Succeed(n); err != nil || twin.Checksum() != s.Checksum() {
			r.Fatalf("the same act on the same state gave another one (%v)", err)
		}
		again := restored(t, s)
		if again.Checksum() != s.Checksum() {
			r.Fatal("the state is another one after a restart")
		}
		if d := cmp.Diff(usages(again), usages(s)); d != "" {
			r.Fatalf("the counters differ: %s", d)
		}
		v := s.View()
		if v.Index() != n.Index || v.ProtocolVersion() < VersionHistory {
			r.Fatalf("index %d, protocol version %d", v.Index(), v.ProtocolVersion())
		}
		checkSucceededHistory(r, before, v, done)
		checkSucceededRows(r, rows, dump(s), done)
		checkVoid(r, before, s, n, rapid.SampledFrom(entries).Draw(r, "repeated").Command)
	})
}

// checkSucceededHistory compares the new history with the old one.
func checkSucceededHistory(r *rapid.T, before, v *View, done Succeeded) {
	old, next := before.History(), v.History()
	if next.Epoch <= old.Epoch || next.ID == old.ID || next.ID != done.History.ID ||
		slices.Contains(next.Parents, next.ID) {
		r.Fatalf("history %+v after %+v", next, old)
	}
	if old.ID != "" && next.Parents[0] != old.ID {
		r.Fatalf("the parents are %v after %s", next.Parents, old.ID)
	}
	h := v.Hold()
	if h == nil || h.Index != v.Index() || h.Findings[0].Kind != FindingRestored {
		r.Fatalf("the hold is %+v", h)
	}
	for i := before.Index(); i < before.Index()+5; i++ {
		b := Birth{Cluster: before.ClusterID(), Nonce: before.Birth().Nonce, Index: i}
		if i <= before.Index() && before.Contains(b) && !v.Contains(b) {
			r.Fatalf("the birth %s was lost", b)
		}
		if i > before.Index() && v.Contains(b) {
			r.Fatalf("the birth %s of the lost continuation counts as ours", b)
		}
	}
	rows, _ := v.Sandboxes("ada", Page{})
	for _, sb := range rows {
		if !v.Held(sb) || !v.Contains(sb.Birth) || sb.Status.Job.Registered {
			r.Fatalf("sandbox %s: held %v, ours %v, reverts %v", sb.ID, v.Held(sb), v.Contains(sb.Birth),
				sb.Status.Job.Registered)
		}
	}
	if m := v.PoolMembers(""); len(m) > 0 {
		r.Fatalf("%d warm members stayed", len(m))
	}
}

// checkSucceededRows: members, sessions and codes are removed alone, the latter all, and only orphans are
// added.
func checkSucceededRows(r *rapid.T, before, after map[string]json.RawMessage, done Succeeded) {
	gone := 0
	for name := range before {
		_, stays := after[name]
		switch table, _, _ := strings.Cut(name, " "); {
		case table == tableSessions || table == tableSignInCodes || table == tableDevices:
			if stays {
				r.Fatalf("%s is not gone", name)
			}
		case stays, derived(name):
		case table == tableSandboxes:
			gone++
		default:
			r.Fatalf("%s is gone", name)
		}
	}
	if gone != done.Members {
		r.Fatalf("%d sandboxes are gone, %d members were dropped", gone, done.Members)
	}
	for name := range maps.Keys(after) {
		if _, was := before[name]; !was && !strings.HasPrefix(name, tableOrphans+" ") && !derived(name) {
			r.Fatalf("%s is new", name)
		}
	}
}

// derived reports whether a row is derived from others.
func derived(name string) bool {
	return strings.HasPrefix(name, tableUsage) || strings.HasPrefix(name, tableSecretRefs)
}

// checkVoid: an earlier command that is sent again is never applied as if it were new, and an
// earlier Idempotency-Key has no known outcome.
func checkVoid(r *rapid.T, before *View, s *Store, n Succession, cmd Command) {
	if _, _, _, known := before.CommandResult(cmd.ID); !known || cmd.Type == TermOpen {
		return
	}
	if r := first[commandRecord](before.txn, tableClientCommands, indexID, []byte(cmd.ID)); r != nil {
		cmd.Time = n.At.Add(time.Second) // its client retries
		if cmd.Time.Sub(r.Time) > ClientResultTTL {
			return
		}
	} else if n.At.Sub(cmd.Time) >= InternalResultTTL {
		return // no leader accepts it
	}
	o := s.ApplyBatch([]Entry{{s.Index() + 1, cmd}})[0]
	if o.Err != nil && o.Err.Code == CodeUnauthorized && !s.View().Good(cmd.UserID, cmd.Credential, cmd.Time) {
		return // its key is no longer valid
	}
	if o.Err == nil || o.Err.Code != CodeOutcomeUnknown && o.Err.Code != CodeIdempotencyMismatch {
		r.Fatalf("%s %s of before was answered %+v (%v)", cmd.Type, cmd.ID, o.Result, o.Err)
	}
}

// TestSucceed_Members: a former warm member becomes an orphan, because it may have been claimed
// since.
func TestSucceed_Members(t *testing.T) {
	t.Parallel()
	f := populated(t)
	f.do("", &ProtocolRaiseBody{Version: VersionHistory})
	member := f.store.View().SandboxAny("m1")
	done, err := f.store.Succeed(afterwards(f.store.View(), f.now))
	v := f.store.View()
	if err != nil || done.Members != 1 || v.SandboxAny("m1") != nil {
		t.Fatalf("%+v (%v): the member is %v", done, err, v.SandboxAny("m1"))
	}
	for _, kind := range []string{OrphanJob, OrphanWorkspace} {
		if o := v.Orphan(kind, "m1"); o == nil || o.Reason != OrphanUnowned || o.Birth != member.Birth.String() {
			t.Errorf("the %s of the member is %+v", kind, o)
		}
	}
	if v.SecretReferenced(member.WarmKeyRef.Path, member.WarmKeyRef.Version) {
		t.Error("the member's key is still referred to")
	}
}

// TestSucceed_RevokedCertificatesStayRevoked: a restore must not accept the certificate of a stolen
// machine again.
func TestSucceed_RevokedCertificatesStayRevoked(t *testing.T) {
	t.Parallel()
	f := populated(t)
	f.do("", &ProtocolRaiseBody{Version: ProtocolVersion})
	f.do("", &CertificateRevokeBody{Fingerprint: sha("old"), Node: "n1"})
	n := afterwards(f.store.View(), f.now)
	n.Revoked = []RevokedCertificate{
		{Fingerprint: sha("old"), Node: "n1"},
		{Fingerprint: sha("stolen"), Node: "n3", Time: f.now},
	}
	if _, err := f.store.Succeed(n); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range f.store.View().RevokedCertificates() {
		got = append(got, c.Fingerprint)
	}
	if d := cmp.Diff([]string{sha("old"), sha("stolen")}, got); d != "" {
		t.Error(d)
	}
}

// TestSucceed_Keys: all keys are suspended except the one that is kept, whether the state knew it
// or not.
func TestSucceed_Keys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		keep *APIKey
		want []bool
	}{
		{"none is kept", nil, []bool{false, false}},
		{
			"a known one",
			&APIKey{Lookup: "aaaaaaaaaaaa", Hash: sha("key"), UserID: "ada", Operator: true},
			[]bool{true, false},
		},
		{
			"another one",
			&APIKey{ID: 1, Lookup: "cccccccccccc", Hash: sha("other"), UserID: "ops", Operator: true},
			[]bool{false, false, true},
		},
	} {
		f := populated(t)
		f.do("", &APIKeyCreateBody{Lookup: "bbbbbbbbbbbb", Hash: sha("k2"), UserID: "bob"})
		f.do("", &APIKeyRevokeBody{ID: 2})
		n := afterwards(f.store.View(), f.now)
		n.SuspendKeys, n.KeepKey = true, c.keep
		if _, err := f.store.Succeed(n); err != nil {
			t.Fatal(err)
		}
		var got []bool
		for _, k := range f.store.View().APIKeys() {
			got = append(got, k.Valid(f.now))
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if c.keep != nil && f.store.View().User(c.keep.UserID) == nil {
			t.Errorf("%s: the user %s is not there", c.name, c.keep.UserID)
		}
	}
}

// TestSucceed_Refuses: an invalid succession is refused and changes nothing.
func TestSucceed_Refuses(t *testing.T) {
	t.Parallel()
	f := populated(t)
	before := f.store.Checksum()
	for want, change := range map[string]func(*Succession){
		"an id and a time":  func(n *Succession) { n.ID = "" },
		"needs a kind":      func(n *Succession) { n.Kind = FindingStranger },
		"the state is at":   func(n *Succession) { n.Index = f.store.Index() },
		"another API key":   func(n *Succession) { n.KeepKey = &APIKey{Lookup: "aaaaaaaaaaaa", Hash: sha("x")} },
		"no term was ever ": func(*Succession) {},
	} {
		n, s := afterwards(f.store.View(), f.now), f.store
		change(&n)
		if strings.HasPrefix(want, "no term") {
			s = NewStore()
		}
		if _, err := s.Succeed(n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if f.store.Checksum() != before {
		t.Error("a refusal changed the state")
	}
}

// TestSucceed_TermsGoOn: the term that a new Raft opens is recorded, although the state's own terms
// have higher numbers.
func TestSucceed_TermsGoOn(t *testing.T) {
	t.Parallel()
	f := populated(t)
	f.do("", &ProtocolRaiseBody{Version: VersionHistory})
	f.do("", &TermOpenBody{Term: 57, Node: "n1", ClusterID: "test", Nonce: "last"})
	n := afterwards(f.store.View(), f.now)
	n.Term = 1
	if _, err := f.store.Succeed(n); err != nil {
		t.Fatal(err)
	}
	f.index = n.Index
	f.do("", &TermOpenBody{Term: 2, Node: "n9", ClusterID: "new", Nonce: "fresh"})
	v := f.store.View()
	if b := v.Birth(); b.Nonce != "fresh" || b.Cluster != "test" || v.Term() != 2 {
		t.Fatalf("the birth of now is %s in term %d", b, v.Term())
	}
	lost := Birth{Cluster: "test", Nonce: "last", Index: f.index}
	if v.Contains(lost) {
		t.Fatalf("the birth %s counts as ours", lost)
	}
}
