package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/secrets"
)

// oneNode is a state with its own secret store and without a cluster.
type oneNode struct {
	secretStore
	t     *testing.T
	state *fsm.Store
	index uint64
}

// newOneNode opens the first term of a cluster on a store.
func newOneNode(t *testing.T, cluster string, store secrets.Store) *oneNode {
	n := &oneNode{t: t, state: fsm.NewStore()}
	n.secretStore = newSecretStore(store, n.state.View, nil)
	n.apply(&fsm.TermOpenBody{Term: 1, Node: "n1", ClusterID: cluster})
	return n
}

func (n *oneNode) apply(body fsm.Body) {
	n.t.Helper()
	n.index++
	if _, err := n.state.Apply(n.index,
		fsm.NewCommand("c"+string(rune('a'+n.index)), time.Unix(1e9, 0), "ada", body)); err != nil {
		n.t.Fatal(err)
	}
}

func openTestSecrets(t *testing.T) *secrets.Sealed {
	t.Helper()
	sealed, err := secrets.OpenSealed(t.TempDir(), secrets.SealedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sealed.Close() })
	return sealed
}

const testSecretPath = "users/ada/settings/llm_api_key"

func TestSecretStore_ReferencesSayWhenFromProtocolVersion3(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := newOneNode(t, "c1", openTestSecrets(t))
	data := map[string]string{"value": "a"}
	old, err := n.Write(ctx, testSecretPath, data)
	if err != nil || old.Created != "" {
		t.Fatalf("below protocol version 3: %+v, %v", old, err)
	}
	n.apply(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	ref, err := n.Write(ctx, testSecretPath, data)
	if err != nil || ref.Created == "" {
		t.Fatalf("%+v, %v", ref, err)
	}
	other, odd := ref, ref
	other.Created, odd.Created = "2026-01-02T03:04:05.123456789Z", "yesterday"
	for want, ref := range map[string]fsm.SecretRef{"": ref, " ": old, "rolled back": other, "which is no time": odd} {
		got, err := n.Read(ctx, ref)
		if want = strings.TrimSpace(want); want == "" {
			if err != nil || got["value"] != "a" {
				t.Errorf("%+v: %v, %v", ref, got, err)
			}
		} else if fsm.CodeOf(err) != fsm.CodeNotFound || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", ref, err, want)
		}
	}
	n.apply(&fsm.SettingsPutBody{LLMAPIKey: &ref})
	if got := n.state.View().Settings("ada").LLMAPIKey; got != ref {
		t.Errorf("the state holds %+v, want %+v", got, ref)
	}
	if _, err := n.Collect(ctx,
		func(scheduler.SecretEntry) scheduler.SecretVerdict { return scheduler.SecretKeep }); err != nil {
		t.Error(err)
	}
}

func TestSecretStore_AnotherClustersMark_IsNamed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := openTestSecrets(t)
	first, second := newOneNode(t, "c1", store), newOneNode(t, "c2", store)
	first.apply(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	mark, ok := first.state.View().Mark(time.Unix(1e9, 0))
	if !ok {
		t.Fatal("no mark")
	}
	if err := first.WriteMark(ctx, mark, 0); err != nil {
		t.Fatal(err)
	}
	if err := first.WriteMark(ctx, mark, 0); fsm.CodeOf(err) != fsm.CodeConflict {
		t.Errorf("a lost check-and-set: %v", err)
	}
	if got, _, found, err := second.ReadMark(ctx); err != nil || !found || got != mark {
		t.Errorf("%+v, %t, %v", got, found, err)
	}
	_, werr := second.Write(ctx, testSecretPath, map[string]string{"value": "b"})
	_, cerr := second.Collect(ctx,
		func(scheduler.SecretEntry) scheduler.SecretVerdict { return scheduler.SecretUnreferenced })
	for _, err := range []error{werr, cerr, second.Delete(ctx, testSecretPath), second.Undelete(ctx, testSecretPath, 1)} {
		var coded *fsm.Error
		if !errors.As(err, &coded) || coded.Code != fsm.CodeSecretStore ||
			!strings.Contains(coded.Message, "belongs to cluster c1") {
			t.Errorf("%v", err)
		}
	}
	if _, err := first.Write(ctx, testSecretPath, map[string]string{"value": "a"}); err != nil {
		t.Error(err)
	}
}

func TestSecretError_PassesOnWhatHelps(t *testing.T) {
	t.Parallel()
	for says, err := range map[string]error{
		"vault denies update on secret/undelete/x": &secrets.DeniedError{Capability: "update", Path: "secret/undelete/x"},
		"sealed or away":             secrets.ErrUnavailable,
		"enter the secret again":     &secrets.ReusedError{},
		"not in the secret store":    secrets.ErrNotFound,
		"written by another leader":  secrets.ErrConflict,
		"its name can't be stored":   secrets.ErrInvalid,
		"remove the secret and save": secrets.ErrFull,
	} {
		if !strings.Contains(secretError(err).Error(), says) {
			t.Errorf("%v", secretError(err))
		}
	}
	err := secretError(&secrets.DeniedError{Capability: "update", Path: "secret/undelete/x"})
	var denied *scheduler.Denied
	if fsm.CodeOf(err) != fsm.CodeSecretStore || !errors.As(err, &denied) || denied.Path != "secret/undelete/x" ||
		denied.Capability != "update" {
		t.Errorf("a missing permission: %v, %+v", err, denied)
	}
	if secretError(nil) != nil {
		t.Error("no error became one")
	}
}

// namedBackups refers to every version, to none, or returns an error.
type namedBackups struct {
	named bool
	err   error
}

func (b namedBackups) Named(context.Context) (func(string, int) bool, error) {
	return func(path string, version int) bool { return b.named && path == testSecretPath && version == 1 }, b.err
}

// TestSecretStore_WhatABackupNamesIsNotDestroyed: a version that a backup refers to is deleted
// and can be undeleted. The same holds while the backups can't be read.
func TestSecretStore_WhatABackupNamesIsNotDestroyed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backups namer
		want    int
	}{
		"no backups": {nil, 1}, "not named": {namedBackups{}, 1},
		"named": {namedBackups{named: true}, 0}, "unreadable": {namedBackups{err: errors.New("not mounted")}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			sealed, err := secrets.OpenSealed(t.TempDir(),
				secrets.SealedOptions{Grace: time.Nanosecond, Retention: time.Nanosecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { sealed.Close() })
			n := newOneNode(t, "c1", sealed)
			n.log, n.backups = slog.New(slog.DiscardHandler), c.backups
			n.apply(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
			if _, err := n.Write(t.Context(), testSecretPath, map[string]string{"value": "a"}); err != nil {
				t.Fatal(err)
			}
			var deleted, destroyed int
			for range 3 {
				did, err := n.Collect(t.Context(),
					func(scheduler.SecretEntry) scheduler.SecretVerdict { return scheduler.SecretUnreferenced })
				if err != nil {
					t.Fatal(err)
				}
				deleted, destroyed = deleted+did.Deleted, destroyed+did.Destroyed
			}
			if deleted != 1 || destroyed != c.want {
				t.Errorf("%d deleted, %d destroyed, want 1 and %d", deleted, destroyed, c.want)
			}
		})
	}
}
