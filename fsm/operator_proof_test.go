package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"
)

// keysOf makes a store with an operator's key and a user's, at a protocol version.
func keysOf(t *testing.T, version int) (s *Store, apply func(lookup string, body Body) error) {
	t.Helper()
	s = NewStore()
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	index := uint64(0)
	apply = func(lookup string, body Body) error {
		index++
		user := ""
		if k := s.View().APIKeyByLookup(lookup); k != nil {
			user = k.UserID
		}
		cmd := NewCommand(hex.EncodeToString([]byte{byte(index)}), now.Add(time.Duration(index)*time.Second), user, body)
		cmd.Credential = Credential{Lookup: lookup}
		_, err := s.Apply(index, cmd)
		return err
	}
	for _, body := range []Body{
		&ProtocolRaiseBody{Version: version},
		&APIKeyCreateBody{
			Lookup:    "aaaaaaaaaaaa",
			Hash:      hashOf("bvk_aaaaaaaaaaaa_secret"),
			Name:      "k",
			UserID:    "admin",
			Operator:  true,
			Bootstrap: true,
		},
		&APIKeyCreateBody{Lookup: "uuuuuuuuuuuu", Hash: hashOf("bvk_uuuuuuuuuuuu_secret"), Name: "k", UserID: "user"},
	} {
		if err := apply("", body); err != nil {
			t.Fatal(err)
		}
	}
	return s, apply
}

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// TestApply_OperatorsCommandsNeedAnOperatorsKey: the key behind the command is judged in Apply.
func TestApply_OperatorsCommandsNeedAnOperatorsKey(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]Code{VersionCharacters: "", VersionAccess: CodeForbidden} {
		_, apply := keysOf(t, version)
		for _, body := range []Body{
			&UserConfigureBody{UserID: "user"}, &InstallationConfigureBody{}, &SpecApplyBody{},
			&APIKeyCreateBody{
				Lookup:   "tttttttttttt",
				Hash:     hashOf("x"),
				Name:     "k",
				UserID:   "user",
				Operator: true,
			}, &APIKeyRevokeBody{ID: 7},
		} {
			if body.CommandType() == APIKeyRevoke && want == "" {
				want = CodeNotFound
			}
			if err := apply("uuuuuuuuuuuu", body); CodeOf(err) != want {
				t.Errorf("version %d: %s with a user's key: %v, want %q", version, body.CommandType(), err, want)
			}
			if err := apply("aaaaaaaaaaaa", body); CodeOf(err) == CodeForbidden {
				t.Errorf("version %d: %s with an operator's key: %v", version, body.CommandType(), err)
			}
		}
	}
}

func TestView_OperatorProves(t *testing.T) {
	t.Parallel()
	const operator, user = "bvk_aaaaaaaaaaaa_secret", "bvk_uuuuuuuuuuuu_secret"
	s, apply := keysOf(t, VersionAccess)
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	v, message := s.View(), []byte("message")
	proof := OperatorProof(operator, message)
	changed := bytes.Clone(proof)
	changed[3] ^= 1
	for what, c := range map[string]struct {
		lookup         string
		message, proof []byte
		want           bool
	}{
		"the key":          {"aaaaaaaaaaaa", message, proof, true},
		"another message":  {"aaaaaaaaaaaa", []byte("another"), proof, false},
		"a changed proof":  {"aaaaaaaaaaaa", message, changed, false},
		"the hash alone":   {"aaaaaaaaaaaa", message, OperatorProof(hashOf(operator), message), false},
		"a user's key":     {"uuuuuuuuuuuu", message, OperatorProof(user, message), false},
		"another lookup":   {"uuuuuuuuuuuu", message, proof, false},
		"an unknown key":   {"xxxxxxxxxxxx", message, proof, false},
		"no proof":         {"aaaaaaaaaaaa", message, nil, false},
		"an endless proof": {"aaaaaaaaaaaa", message, make([]byte, maxProof+1), false},
	} {
		if got := v.OperatorProves(c.lookup, c.message, c.proof, now); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	if bytes.Contains(proof, []byte("secret")) || !v.AnyOperatorKey(now) {
		t.Error("the proof shows the key, or there is none")
	}
	if err := apply("", &APIKeyRevokeBody{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if v := s.View(); v.OperatorProves("aaaaaaaaaaaa", message, proof, now) || v.AnyOperatorKey(now) {
		t.Error("a revoked key proves")
	}
}
