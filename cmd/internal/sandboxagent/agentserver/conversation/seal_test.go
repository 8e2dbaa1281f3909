package conversation

import "testing"

// Another secret key, or another conversation's id, fails to decrypt.
func TestSeal_OpensWithItsKeyAndItsConversationAlone(t *testing.T) {
	const id = "6f0c4e3b9a7d4c1e8f2b5a6d7c8e9f01"
	one := newSealer("SEALCANARY")
	sealed := one.seal(id, []byte("plain"))
	if plain, err := one.open(id, sealed); err != nil || string(plain) != "plain" {
		t.Errorf("it opens as %q, %v", plain, err)
	}
	if _, err := newSealer("x").open(id, sealed); err == nil {
		t.Error("another key opens the seal")
	}
	if _, err := one.open("other", sealed); err == nil {
		t.Error("another conversation's seal opens")
	}
}
