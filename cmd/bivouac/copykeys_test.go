package main

import (
	"bytes"
	"io"
	"testing"

	"filippo.io/age"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// The key of copies is made once the cluster has the protocol version, and each version of its entry
// still opens what it encrypted.
func TestCopyKeys(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := newOneNode(t, "c1", openTestSecrets(t))
	keys := copyKeys{n.secretStore}
	n.apply(&fsm.ProtocolRaiseBody{Version: fsm.VersionCopies - 1})
	if to, err := keys.Recipient(ctx); to != nil || err != nil {
		t.Fatalf("below its protocol version: %v, %v", to, err)
	}
	n.apply(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	var texts [][]byte
	for range 2 {
		to, err := keys.Recipient(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w, err := age.Encrypt(&out, to)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, "text")
		_ = w.Close()
		texts = append(texts, out.Bytes())
		id, _ := age.GenerateX25519Identity()
		if _, err := n.Write(ctx, scheduler.CopyKeys, map[string]string{copyKeyMember: id.String()}); err != nil {
			t.Fatal(err)
		}
	}
	ids, err := keys.Identities(ctx)
	if err != nil || len(ids) != 3 {
		t.Fatalf("%d keys: %v", len(ids), err)
	}
	for i, text := range texts {
		if _, err := age.Decrypt(bytes.NewReader(text), ids...); err != nil {
			t.Errorf("text %d: %v", i, err)
		}
	}
	if again, err := keys.Recipient(ctx); err != nil || again.(*age.X25519Recipient).String() !=
		ids[0].(*age.X25519Identity).Recipient().String() {
		t.Errorf("the newest key does not encrypt: %v", err)
	}
}
