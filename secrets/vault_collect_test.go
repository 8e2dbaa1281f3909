package secrets

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// nothing is a judge that finds nothing referenced.
var nothing = always(Unreferenced)

// entry returns the metadata of the entry at a physical path, nil when there is none.
func entry(t *testing.T, at string) map[string]any {
	t.Helper()
	var answer struct{ Data map[string]any }
	err := sharedVault(t).Do(t.Context(), http.MethodGet, "secret/metadata/"+at, nil, &answer)
	var status *local.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return answer.Data
}

func TestVault_Collect_TouchesOnlyWhatIsOurs(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := sharedVault(t)
	s := newStore(t)
	// Another cluster, whose sandboxes run in the same Nomad namespace.
	cfg := s.cfg
	cfg.Prefix += "-other"
	theirRole, err := server.NewAppRole(ctx,
		local.AppRoleOptions{Name: role(cfg), Prefix: cfg.Prefix, NomadNamespace: cfg.NomadNamespace})
	if err != nil {
		t.Fatal(err)
	}
	cfg.RoleID = theirRole.RoleID
	cfg.SecretIDFile = t.TempDir() + "/secret-id"
	if err := os.WriteFile(cfg.SecretIDFile, []byte(theirRole.SecretID), 0o600); err != nil {
		t.Fatal(err)
	}
	other := run(t, cfg)
	const sandbox = "sandboxes/other/session"
	theirs := write(t, other, sandbox, "theirs")
	foreign := []string{
		s.cfg.NomadNamespace + "/sandbox-operators/key", s.cfg.NomadNamespace + "/job/key",
		s.cfg.NomadNamespace + "/sandbox-flat", s.cfg.Prefix + "/users/by-hand/note",
	}
	for _, at := range foreign {
		if err := server.Do(ctx, http.MethodPost, "secret/data/"+at, map[string]any{"data": map[string]string{"a": "b"}},
			nil); err != nil {
			t.Fatal(err)
		}
	}
	mine := write(t, s, "sandboxes/mine/session", "mine")
	deep := write(t, s, "users/u/custom/bmFtZQ", "deep")
	setGrace(s, time.Second)
	total := collect(t, s, nothing, func(c Collected) error {
		if c.Deleted < 2 {
			return fmt.Errorf("%d so far", c.Deleted)
		}
		return nil
	})
	want(t, s, "sandboxes/mine/session", mine, "")
	want(t, s, "users/u/custom/bmFtZQ", deep, "")
	if c, err := s.Collect(ctx, born, nothing); c.Deleted != 0 || total.Deleted != 2 || err != nil {
		t.Errorf("%+v and %+v collected, %v; want 2 and none", total, c, err)
	}
	want(t, other, sandbox, theirs, "theirs")
	for _, at := range foreign {
		if err := server.Do(ctx, http.MethodGet, "secret/data/"+at, nil, nil); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
}

func TestVault_Collect_DeletesEmptiedEntriesLater(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	write(t, s, settingsPath, "a")
	at := s.physical(settingsPath)
	if err := s.Delete(ctx, settingsPath); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Collect(ctx, born, nothing); c.Deleted+c.Destroyed != 0 || err != nil {
		t.Fatal(c, err)
	}
	if entry(t, at) == nil {
		t.Fatal("the version numbers are forgotten within the grace period")
	}
	setGrace(s, 2*time.Second)
	eventually(t, "the end of the grace period", func() error {
		asked := false
		_, err := s.Collect(ctx, born, func(e Entry) Verdict {
			asked = asked || e.Version == 0 && e.Birth == born
			return Unreferenced
		})
		if err == nil && !asked {
			err = errors.New("nobody was asked about the entry")
		}
		return err
	})
	if entry(t, at) == nil {
		t.Fatal("the version numbers are forgotten within the retention")
	}
	setRetention(s, 2*time.Second)
	eventually(t, "the end of the entry", func() error {
		if _, err := s.Collect(ctx, born, nothing); err != nil {
			return err
		}
		if entry(t, at) != nil {
			return errors.New("it is still there")
		}
		return nil
	})
	// After another write it is no longer an emptied entry.
	setGrace(s, time.Nanosecond)
	v := write(t, s, settingsPath, "b")
	for range 3 {
		if _, err := s.Collect(ctx, born, always(Keep)); err != nil {
			t.Fatal(err)
		}
	}
	s.cache.forget(settingsPath, []int{v})
	want(t, s, settingsPath, v, "b")
}

func TestVault_Delete_OfPathsUsedOnce_LeavesNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, path := range []string{"sandboxes/s1/session", "users/u/start_tasks/t1"} {
		write(t, s, path, "a")
		if err := s.Delete(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if got := entry(t, s.physical(path)); got != nil {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestVault_Write_AfterAWriterDiedBetween(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	session, err := s.session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.claim(ctx, session, s.physical(settingsPath), born); err != nil { // and then stops
		t.Fatal(err)
	}
	setGrace(s, time.Second)
	eventually(t, "the mark that it is empty", func() error {
		if _, err := s.Collect(ctx, born, nothing); err != nil {
			return err
		}
		if custom := entry(t, s.physical(settingsPath))["custom_metadata"].(map[string]any); custom[emptiedKey] == nil {
			return fmt.Errorf("%v", custom)
		}
		return nil
	})
	want(t, s, settingsPath, write(t, s, settingsPath, "a"), "a")
	if custom := entry(t, s.physical(settingsPath))["custom_metadata"].(map[string]any); custom[emptiedKey] != nil {
		t.Errorf("marked as empty: %v", custom)
	}
}
