package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// markInVault returns the leader's mark in Vault.
func (d *disaster) markInVault(t *testing.T) (m fsm.Mark) {
	t.Helper()
	testcluster.Eventually(t, "the mark in Vault", func() error {
		var entry struct {
			Data struct{ Data struct{ Mark string } }
		}
		if err := d.Vault.Do(d.ctx(), http.MethodGet, "secret/data/bivouac/marker", nil, &entry); err != nil {
			return err
		}
		return json.Unmarshal([]byte(entry.Data.Data.Mark), &m)
	})
	return m
}

// holdsFor waits until the cluster holds because of the finding.
func (d *disaster) holdsFor(t *testing.T, kind, store string) {
	t.Helper()
	testcluster.Eventually(t, "the cluster holds: "+kind, func() error {
		if f := d.findings(t); !strings.Contains(f, kind+" "+store) {
			return errors.New(f)
		}
		return nil
	})
}

// version is a version of an entry in Vault.
type version struct {
	Destroyed bool
	Deleted   string `json:"deletion_time"`
}

// versionsOf returns the versions of the operator's setting, and its path below the mount.
func (d *disaster) versionsOf(t *testing.T, member string) (path string, versions map[string]version) {
	t.Helper()
	path = d.settingPath(t, member)
	var meta struct {
		Data struct{ Versions map[string]version }
	}
	if err := d.Vault.Do(d.ctx(), http.MethodGet, "secret/metadata/"+path, nil, &meta); err != nil {
		t.Fatal(err)
	}
	return path, meta.Data.Versions
}

// settingPath returns the path in Vault of a setting of the only user.
func (d *disaster) settingPath(t *testing.T, member string) string {
	t.Helper()
	entries, err := d.VaultEntries()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e, "bivouac/users/") && strings.HasSuffix(e, "/settings/"+member) {
			return e
		}
	}
	t.Fatalf("no setting %s in %v", member, entries)
	return ""
}

// valueAt reads a version in Vault, "" if there is none.
func (d *disaster) valueAt(path string, number int) (string, error) {
	var entry struct {
		Data struct{ Data map[string]string }
	}
	err := d.Vault.Do(d.ctx(), http.MethodGet, fmt.Sprintf("secret/data/%s?version=%d", path, number), nil, &entry)
	return entry.Data.Data["value"], err
}

// setting writes a secret of the operator's settings.
func (d *disaster) setting(t *testing.T, member, value string) {
	t.Helper()
	d.node.Sure(t, http.MethodPost, "/api/settings", map[string]any{member: value}, nil)
}

// TestVaultWiped wipes Vault. Running sandboxes keep running, nothing is destroyed, and the
// cluster holds. The operator sets Vault up again, as ops/runbooks/vault-restored.md says, and
// users enter their secrets again.
func TestVaultWiped(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this")
	}
	d := startDisaster(t, testcluster.Options{})
	kept, paused := d.sandbox(t), d.begin(t)
	d.node.Change(t, paused, "pause")
	d.node.AwaitSandbox(t, paused, "PAUSED")
	d.setting(t, "llm_api_key", "before")
	d.markInVault(t)
	role := d.roleID(t)
	begin := time.Now()
	d.vaultWhileStopped(t, func() error { return os.RemoveAll(filepath.Join(d.Vault.Dir, "data")) })

	// Vault is up without any setup: it rejects every login.
	a, err := d.node.Try(http.MethodPost, "/api/v1/sandboxes?sandbox_spec_id="+d.spec, nil)
	if err != nil || a.Status != http.StatusServiceUnavailable {
		t.Errorf("a start on an empty Vault: %v, %v", a, err)
	}
	d.stillFor(t, quiet)
	d.node.AwaitSandbox(t, kept.ID, "RUNNING")
	hasFile(t, kept, workspaceFile)

	// The runbook's steps: the policies, the role with its former id, a new secret id, Nomad's
	// access.
	d.setUpVault(t, role)
	d.holdsFor(t, fsm.FindingMarkLost, fsm.StoreVault)
	held := time.Since(begin)
	findings := d.holds(t)
	t.Logf("held %.1f s after the loss: %s", held.Seconds(), findings)
	made := d.begin(t) // a user's request still works
	d.node.Change(t, paused, "resume")
	var lost testcluster.Sandbox
	// The key may come until the start deadline.
	err = testcluster.Await(4*time.Minute, func() (err error) {
		if lost, err = d.node.Sandbox(paused); err == nil &&
			(lost.Status != "ERROR" || !strings.Contains(lost.Detail(), "key")) {
			err = fmt.Errorf("it is %s (%s)", lost.Status, lost.Detail())
		}
		return err
	})
	if err != nil {
		t.Errorf("the sandbox without its key: %v", err)
	}
	d.releases(t, fsm.FindingMarkLost)
	d.markInVault(t)
	if f := d.findings(t); f != "no hold" {
		t.Errorf("after the release: %s", f)
	}
	d.setting(t, "llm_api_key", "entered again")
	d.node.AwaitSandbox(t, kept.ID, "RUNNING")
	hasFile(t, kept, workspaceFile) // the client has the key; Vault lost it
	d.nothingDestroyed(t)
	d.node.Change(t, paused, "delete")
	hasFile(t, d.node.AwaitSandbox(t, made, "RUNNING"), workspaceFile)
	d.verdict(t, "an empty Vault: held %.1f s after its loss (%s); a running sandbox ran on with its file, "+
		"a new one started under the hold; a paused one says %q; lost: every key and setting, entered again by its user",
		held.Seconds(), findings, lost.Detail())
}

// roleID is the id of the nodes' role in Vault.
func (d *disaster) roleID(t *testing.T) string {
	t.Helper()
	var role struct {
		Data struct {
			ID string `json:"role_id"`
		}
	}
	if err := d.Vault.Do(d.ctx(), http.MethodGet, "auth/approle/role/bivouac/role-id", nil, &role); err != nil {
		t.Fatal(err)
	}
	return role.Data.ID
}

// setUpVault sets up an empty Vault for the nodes of a wiped one.
func (d *disaster) setUpVault(t *testing.T, roleID string) {
	t.Helper()
	role, err := d.Vault.NewAppRole(d.ctx(), local.AppRoleOptions{})
	if err == nil {
		err = d.Vault.Do(d.ctx(), http.MethodPost, "auth/approle/role/bivouac/role-id",
			map[string]string{"role_id": roleID}, nil)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(d.Dir, "secret-id"), []byte(role.SecretID), 0o600)
	}
	if err := errors.Join(err, d.Vault.TrustNomad(d.ctx(), d.Nomad.Address)); err != nil {
		t.Fatal(err)
	}
}

// TestReplacedSecretsComeBack restores a file that refers to values that were replaced later
// and deleted as unreferenced. Deleted versions can be read again; destroyed ones are reported
// as missing.
func TestReplacedSecretsComeBack(t *testing.T) {
	if !long() {
		t.Skip("make drills runs this: secrets must be older than the shortest grace")
	}
	d := startDisaster(t, testcluster.Options{})
	d.setting(t, "llm_api_key", "first")
	d.setting(t, "search_api_key", "first")
	file := filepath.Join(t.TempDir(), "bivouac.snap")
	d.node.Operate(t, "operator", "snapshot", "save", file)
	d.setting(t, "llm_api_key", "second")
	d.setting(t, "search_api_key", "second")
	begin := time.Now()
	for _, member := range []string{"llm_api_key", "search_api_key"} {
		err := testcluster.Await(shortGrace+2*quiet, func() error {
			if _, v := d.versionsOf(t, member); v["1"].Deleted == "" || v["1"].Destroyed || v["2"].Deleted != "" {
				return fmt.Errorf("%s has the versions %+v", member, v)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	collected := time.Since(begin)
	destroyed := d.settingPath(t, "search_api_key")
	if err := d.Vault.Do(d.ctx(), http.MethodPut, "secret/destroy/"+destroyed, map[string][]int{"versions": {1}},
		nil); err != nil {
		t.Fatal(err)
	}

	d.killAll()
	for _, n := range d.Nodes {
		if err := errors.Join(n.EmptyData(), n.Configure(expectOne)); err != nil {
			t.Fatal(err)
		}
	}
	d.node.Start(t)
	d.node.Ready(t)
	fresh := filepath.Join(t.TempDir(), "key")
	d.Run(t, "keys", "bootstrap", "--config", d.node.File(), "--out", fresh)
	out := d.Run(t, "operator", "snapshot", "restore", file, "--keys", "keep", "--yes", "--address", d.node.Base,
		"--api-key-file", fresh)
	t.Logf("operator snapshot restore:\n%s", out)
	for _, want := range []string{
		"search_api_key version 1, the store has 2", "llm_api_key version 1, the store has 2",
		"1 secrets that the file refers to are missing: ", "/settings/search_api_key version 1\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	back := d.settingPath(t, "llm_api_key")
	testcluster.Eventually(t, "the value of before reads again", func() error {
		value, err := d.valueAt(back, 1)
		if err == nil && value != "first" {
			err = fmt.Errorf("it is %q", value)
		}
		return err
	})
	if value, err := d.valueAt(destroyed, 1); err == nil {
		t.Errorf("a value that was destroyed is %q", value)
	}
	d.verdict(t,
		"a replaced value was deleted after %.0f s and read again after the restore; one that was destroyed is reported; %s",
		collected.Seconds(), d.findings(t))
}
