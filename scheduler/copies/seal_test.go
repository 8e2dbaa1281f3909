package copies_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/archive"
	"bivouac.dev/bivouac/scheduler/copies"
)

// keyring are keys in memory. The newest encrypts.
type keyring struct {
	ids []*age.X25519Identity
	err error
}

func (k *keyring) add(t *testing.T) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	k.ids = append(k.ids, id)
}

// Recipient implements copies.Keys.
func (k *keyring) Recipient(context.Context) (age.Recipient, error) {
	if k.err != nil || len(k.ids) == 0 {
		return nil, k.err
	}
	return k.ids[len(k.ids)-1].Recipient(), nil
}

// Identities implements copies.Keys.
func (k *keyring) Identities(context.Context) (list []age.Identity, err error) {
	for _, id := range k.ids {
		list = append(list, id)
	}
	return list, k.err
}

// with opens the bench's store with keys.
func (b *bench) with(k copies.Keys) *bench {
	b.Helper()
	s, err := copies.Open(b.Context(), "file://"+b.store, k)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	b.s = s
	return b
}

// No name and no text of a workspace is in the store, and nothing reads it without the key.
func TestSave_StoreHasNoText(t *testing.T) {
	const canary = "canary-6f1d"
	keys := &keyring{}
	keys.add(t)
	b := newBench(t).with(keys)
	b.write("name-"+canary, []byte(strings.Repeat("text "+canary+"\n", 1000)))
	b.write("other", random(5<<20))
	if err := os.Symlink("target-"+canary, filepath.Join(b.dir, "link")); err != nil {
		t.Fatal(err)
	}
	first, _ := b.save(nil)
	b.write("third", []byte(canary))
	second, up := b.save(&first)
	if up != int64(len(canary)) {
		t.Errorf("the second copy uploads %d bytes", up)
	}
	for _, name := range b.objects() {
		raw, err := os.ReadFile(filepath.Join(b.store, name))
		if err != nil || bytes.Contains(raw, []byte(canary)) || !bytes.HasPrefix(raw, []byte("age-encryption.org/v1\n")) {
			t.Errorf("%s shows what is in the workspace: %v", name, err)
		}
	}
	dir, err := b.load(second)
	if err != nil {
		t.Fatal(err)
	}
	b.has(dir, "third", []byte(canary))
	other := &keyring{}
	other.add(t)
	for name, k := range map[string]copies.Keys{"no key": nil, "another key": other, "no keys": &keyring{}} {
		if _, err := b.with(k).load(second); !errors.Is(err, archive.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A secret store that is away says nothing about the copy.
	away := fsm.Errorf(fsm.CodeSecretStore, "sealed")
	b.with(&keyring{err: away})
	if err := b.s.Load(t.Context(), "cl", "sb1", second, io.Discard); fsm.CodeOf(err) != fsm.CodeSecretStore {
		t.Errorf("with a sealed secret store: %v", err)
	}
	if _, _, _, err := b.s.Save(t.Context(), "cl", "sb1", &second, b.export); fsm.CodeOf(err) != fsm.CodeSecretStore {
		t.Errorf("a copy with a sealed secret store: %v", err)
	}
}

// Copies from before the cluster had a key, and those of an earlier key, are restored and built on.
func TestLoad_EarlierKeysAndNone(t *testing.T) {
	keys := &keyring{}
	b := newBench(t)
	b.write("a", random(5000))
	plain, _ := b.save(nil)
	b.with(keys)
	var made []fsm.Copy
	base := plain
	for i, want := range []int64{11000, 6000} {
		name := string(rune('b' + i))
		keys.add(t)
		b.write(name, random(6000))
		next, up := b.save(&base)
		if up != want {
			t.Errorf("the copy with %s uploads %d bytes: it builds on what is in plain", name, up)
		}
		made, base = append(made, next), next
	}
	for _, c := range append(made, plain) {
		dir, err := b.load(c)
		if err != nil {
			t.Fatal(err)
		}
		b.has(dir, "a", random(5000))
	}
	keys.ids = keys.ids[1:]
	_, err := b.load(base)
	if !errors.Is(err, archive.ErrDamaged) || !strings.Contains(err.Error(), "none of the 1 keys") {
		t.Errorf("without the first key: %v", err)
	}
}

// Who can write to the store can't put one sandbox's content into another's copy.
func TestLoad_RefusesSwappedObjects(t *testing.T) {
	keys := &keyring{}
	keys.add(t)
	b := newBench(t).with(keys)
	b.write("f", []byte("ada's"))
	first, _ := b.save(nil)
	b.write("f", []byte("bob's"))
	second, _ := b.save(nil)
	for _, name := range []string{"manifest", "data-000000.age"} {
		from, to := filepath.Join(b.store, "cl", "sb1", first.ID, name), filepath.Join(b.store, "cl", "sb1", second.ID, name)
		raw, err := os.ReadFile(from)
		was, err2 := os.ReadFile(to)
		if err := errors.Join(err, err2, os.WriteFile(to, raw, 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.load(second); !errors.Is(err, archive.ErrDamaged) {
			t.Errorf("%s of another copy: %v", name, err)
		}
		if err := os.WriteFile(to, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
