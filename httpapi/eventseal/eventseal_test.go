package eventseal

import (
	"bytes"
	"context"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// entries is a secret store with one entry.
type entries struct{ data map[string]string }

func (e *entries) Write(_ context.Context, path string, data map[string]string) (fsm.SecretRef, error) {
	e.data = data
	return fsm.SecretRef{Path: path, Version: 1}, nil
}

func (e *entries) Read(context.Context, fsm.SecretRef) (map[string]string, error) {
	if e.data == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "it is gone")
	}
	return e.data, nil
}

// TestKey_SealsForOnePlace: a body opens with its key at its place only, and shows nothing.
func TestKey_SealsForOnePlace(t *testing.T) {
	t.Parallel()
	store, other := &entries{}, &entries{}
	key := func(e *entries) Key {
		ref, err := Ensure(t.Context(), e, &fsm.User{ID: "ada"}, func(b fsm.Body) (fsm.Result, error) {
			return fsm.Result{User: &fsm.User{EventKey: b.(*fsm.EventsKeyBody).Key}}, nil
		})
		if err != nil || ref.Path != "users/ada/events" {
			t.Fatalf("%+v, %v", ref, err)
		}
		k, err := Of(t.Context(), e, ref)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	mine, theirs := key(store), key(other)
	head := fsm.EventHead{ID: "e1", Kind: "MessageEvent", Source: "user", Timestamp: "2026-01-02T03:04:05"}
	text := []byte(`{"id":"e1","llm_message":"the canary sings"}`)
	stored := mine.Seal("c1", head, text)
	if bytes.Contains(stored, []byte("canary")) || bytes.Equal(stored, mine.Seal("c1", head, text)) {
		t.Error("it shows the text, or that two texts are equal")
	}
	if got, opened, err := mine.Open("c1", stored); err != nil || got != head || !bytes.Equal(opened, text) {
		t.Errorf("opened: %+v, %s, %v", got, opened, err)
	}
	_, body, err := fsm.CutEvent(stored)
	if err != nil {
		t.Fatal(err)
	}
	renamed := head
	renamed.ID = "e2"
	flipped := bytes.Clone(stored)
	flipped[len(flipped)-1] ^= 1
	for name, open := range map[string]func() error{
		"another key":          func() error { _, _, err := theirs.Open("c1", stored); return err },
		"another conversation": func() error { _, _, err := mine.Open("c2", stored); return err },
		"another event": func() error {
			_, _, err := mine.Open("c1", fsm.AppendEvent(nil, renamed, body))
			return err
		},
		"another byte": func() error { _, _, err := mine.Open("c1", flipped); return err },
		"no body":      func() error { _, _, err := mine.Open("c1", fsm.AppendEvent(nil, head, nil)); return err },
	} {
		if open() == nil {
			t.Errorf("%s: it opens", name)
		}
	}
	store.data = nil
	ref := fsm.SecretRef{Path: "users/ada/events", Version: 1}
	if _, err := Of(t.Context(), store, ref); fsm.CodeOf(err) != fsm.CodeNotFound {
		t.Errorf("a destroyed key: %v", err)
	}
}
