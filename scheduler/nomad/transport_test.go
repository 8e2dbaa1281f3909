package nomad_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// A token is replaced while the node runs and the old one is deleted, on a Nomad with ACLs: the next
// listing and the next watch have the new one. A file without a token changes nothing.
func TestRunner_TokenFile_IsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	useStack(t)
	dir := t.TempDir()
	n, err := local.StartNomad(t.Context(), local.NomadOptions{
		Dir: filepath.Join(dir, "nomad"), Namespace: "agents", ACL: true, Drivers: []string{"raw_exec"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(dir, "token")
	// issue writes a new token beside the file and renames it, as Vault Agent does.
	issue := func() {
		t.Helper()
		token, err := n.NewToken(t.Context())
		if err == nil {
			err = os.WriteFile(file+".new", []byte(token+"\n"), 0o600)
		}
		if err == nil {
			err = os.Rename(file+".new", file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// deleteBut deletes all of the nodes' tokens but the one in the file.
	deleteBut := func() {
		t.Helper()
		has, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var tokens []struct{ AccessorID, Type string }
		if err := n.Do(t.Context(), http.MethodGet, "acl/tokens", nil, &tokens); err != nil {
			t.Fatal(err)
		}
		for _, one := range tokens {
			var full struct{ SecretID string }
			if err := n.Do(t.Context(), http.MethodGet, "acl/token/"+one.AccessorID, nil, &full); err != nil {
				t.Fatal(err)
			}
			if one.Type == "client" && full.SecretID+"\n" != string(has) {
				if err := n.Do(t.Context(), http.MethodDelete, "acl/token/"+one.AccessorID, nil, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	issue()
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.Namespace, cfg.TokenFile = n.Address, "agents", file
	r, err := nomad.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	list := func() error { _, err := r.List(t.Context(), "cluster-token"); return err }
	if err := list(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Watch(ctx, "cluster-token", func(scheduler.Observed) {}) }()

	issue()
	deleteBut()
	if err := list(); err != nil {
		t.Fatalf("after the token was replaced: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Logf("the watch that began with the old token: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- r.Watch(ctx, "cluster-token", func(scheduler.Observed) {}) }()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	if err := list(); err != nil {
		t.Errorf("an empty file ends the use of the last good token: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := list(); err != nil {
		t.Errorf("a file that is gone ends the use of the last good token: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("a watch with the new token: %v", err)
	}
	issue()
	deleteBut()
	if err := list(); err != nil {
		t.Errorf("after the file came back: %v", err)
	}
}
