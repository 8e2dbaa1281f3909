package legacy

import "testing"

func TestMapID(t *testing.T) {
	const hex = "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"
	if id, v0 := MapID("alice", hex); id != hex || v0 != "" {
		t.Errorf("a V1 id became %q, %q", id, v0)
	}
	const dashed = "6F0C4E3B-9A7D-4C1E-8F2B-5A6D7C8E9F01"
	if id, v0 := MapID("alice", dashed); id != hex || v0 != dashed {
		t.Errorf("a UUID became %q, %q", id, v0)
	}
	alice, v0 := MapID("alice", "my talk")
	again, _ := MapID("alice", "my talk")
	bob, _ := MapID("bob", "my talk")
	if len(alice) != 32 || v0 != "my talk" || alice != again || alice == bob {
		t.Errorf("a text became %q (%q), then %q; bob's became %q", alice, v0, again, bob)
	}
}
