package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/secrets"
)

// The key of copies is made once the cluster has the protocol version, and each version of its entry
// still opens what it encrypted.
func TestCopyKeys(t *testing.T) {
	t.Parallel()
	t.Run("in a sealed file", func(t *testing.T) { testCopyKeys(t, openTestSecrets(t)) })
	t.Run("in Vault", func(t *testing.T) { // with the policy that is shipped
		v, err := local.StartVault(t.Context(), local.VaultOptions{Dir: t.TempDir(), Progress: os.Stderr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = v.Close() })
		role, err := v.NewAppRole(t.Context(), local.AppRoleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "secret-id")
		if err := os.WriteFile(file, []byte(role.SecretID), 0o600); err != nil {
			t.Fatal(err)
		}
		store, err := secrets.NewVault(secrets.VaultConfig{Address: v.Address, RoleID: role.RoleID, SecretIDFile: file})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- store.Run(ctx) }()
		defer func() { cancel(); <-done }()
		testCopyKeys(t, store)
		ids, err := copyKeys{secrets: bareSecrets{store}}.Identities(ctx)
		if err != nil || len(ids) != 3 {
			t.Errorf("without a node's state: %d keys, %v", len(ids), err)
		}
	})
}

func testCopyKeys(t *testing.T, store secrets.Store) {
	t.Helper()
	ctx := t.Context()
	n := newOneNode(t, "c1", store)
	keys := newCopyKeys(n.secretStore)
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

// deletedNewest are entries whose newest version was deleted and not destroyed.
type deletedNewest struct{ keyEntries }

func (d deletedNewest) Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error) {
	if newest, err := d.Newest(ctx, ref.Path); err != nil || ref.Version == newest {
		return nil, secretError(secrets.ErrNotFound)
	}
	return d.keyEntries.Read(ctx, ref)
}

// A deleted newest version is a fault of the secret store that names it, and no sandbox that is gone.
func TestCopyKeys_NewestIsDeleted(t *testing.T) {
	t.Parallel()
	n := newOneNode(t, "c1", openTestSecrets(t))
	n.apply(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	keys := newCopyKeys(n.secretStore)
	if _, err := keys.Recipient(t.Context()); err != nil {
		t.Fatal(err)
	}
	keys.secrets = deletedNewest{n.secretStore}
	if _, err := keys.Recipient(t.Context()); fsm.CodeOf(err) != fsm.CodeSecretStore ||
		!strings.Contains(err.Error(), "version 1 of copies/key") {
		t.Errorf("with its newest version deleted: %v", err)
	}
}
