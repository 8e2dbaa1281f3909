package secrets

import (
	"testing"

	"github.com/hashicorp/vault/api"
)

// stored encodes births as the entry's custom metadata and parses that again.
func (b births) stored() births {
	custom := map[string]any{ownerKey: "pre"}
	b.into(custom)
	return parseBirths(custom)
}

func TestBirths_EachVersionHasItsOwn(t *testing.T) {
	t.Parallel()
	at := func(nonce string, index uint64) Birth { return Birth{Cluster: "c1", Nonce: nonce, Index: index} }
	b := births{}
	begin := func(current int, birth Birth, changed bool) {
		t.Helper()
		if got := b.begin(current, birth); got != changed {
			t.Errorf("begin(%d, %v) = %t", current, birth, got)
		}
		b = b.stored()
	}
	begin(0, Birth{}, false)
	begin(2, at("a", 3), true)    // 1 and 2 have none
	begin(3, at("a", 9), true)    // the same term
	begin(4, at("a", 4), false)   // a node that is behind
	begin(4, at("b", 11), true)   // another term
	begin(4, at("c", 12), true)   // b's writer stopped
	begin(5, Birth{}, true)       // an old node
	begin(5, at("d", 13), true)   // and a new one
	begin(700, at("e", 20), true) // much later
	for version, want := range map[int]Birth{
		1:   {},
		2:   {},
		3:   at("a", 9),
		4:   at("a", 9),
		5:   at("c", 12),
		6:   at("d", 13),
		700: at("d", 13),
		701: at("e", 20),
	} {
		if got := b.of(version); got != want {
			t.Errorf("version %d: %v, want %v", version, got, want)
		}
	}
	b.trim(6)
	b.set(2, 701, at("x", 1)) // destroyed, which does not matter
	if b = b.stored(); b.of(6) != at("d", 13) || b.of(701) != at("e", 20) || len(b.bounds()) > 3 {
		t.Errorf("%v", b)
	}
}

func TestBirths_TooMany_BecomeUnknown(t *testing.T) {
	t.Parallel()
	b := births{}
	for version := range 3 * maxBirths {
		b.begin(version, Birth{Cluster: "c1", Nonce: string(rune('A' + version)), Index: 1})
		b.trim(1)
		if b = b.stored(); len(b) > maxBirths+1 {
			t.Fatalf("%d members", len(b))
		}
	}
	for version := 1; version <= 3*maxBirths; version++ {
		got, want := b.of(version), Birth{Cluster: "c1", Nonce: string(rune('A' + version - 1)), Index: 1}
		if got != want && (got != Birth{} || version > 2*maxBirths) {
			t.Errorf("version %d: %v", version, got)
		}
	}
}

// TestVault_Write_BesideAnotherTerm_HasItsOwnBirth: another writer claims the entry between this
// writer's claim and its write.
func TestVault_Write_BesideAnotherTerm_HasItsOwnBirth(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	session, err := s.session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := s.physical(settingsPath)
	other := Birth{Cluster: "c1", Nonce: "lost", Index: 99}
	for _, birth := range []Birth{born, other} {
		if _, _, err := s.claim(ctx, session, at, birth); err != nil {
			t.Fatal(err)
		}
	}
	written, err := session.kv.Put(ctx, at, map[string]any{"value": "a"}, api.WithCheckAndSet(0))
	if err != nil {
		t.Fatal(err)
	}
	if got := parseBirths(written.CustomMetadata).of(1); got != other {
		t.Fatalf("the birth in Vault's response is %v", got)
	}
	for range 2 {
		if err := s.amend(ctx, session, at, 1, born); err != nil {
			t.Fatal(err)
		}
	}
	if got := parseBirths(entry(t, at)["custom_metadata"].(map[string]any)); got.of(1) != born {
		t.Errorf("%v", got)
	}
	// The other writer's version has the other writer's birth.
	v := writeAt(t, s, settingsPath, "b", other).Number
	if got := parseBirths(entry(t, at)["custom_metadata"].(map[string]any)); got.of(1) != born || got.of(v) != other {
		t.Errorf("%v", got)
	}
}
