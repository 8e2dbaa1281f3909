package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/archive"
	copystore "bivouac.dev/bivouac/scheduler/copies"
)

// A verification reads every byte: one bit that has changed is found, which no listing shows. A secret
// store that is away is no damage.
func TestVerifyCopies(t *testing.T) {
	t.Parallel()
	n := newOneNode(t, "cl", openTestSecrets(t))
	n.apply(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	dir, work := t.TempDir(), t.TempDir()
	store, err := copystore.Open(t.Context(), "file://"+dir, newCopyKeys(n.secretStore))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	if err := os.WriteFile(filepath.Join(work, "f"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var list []wire.Copy
	for _, id := range []string{"sb1", "sb2"} {
		export := func(ctx context.Context, known io.Reader, out io.Writer) error {
			return archive.Export(ctx, work, known, out, archive.DefaultLimits())
		}
		c, _, _, err := store.Save(t.Context(), "cl", id, nil, export)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, wire.Copy{Cluster: "cl", Sandbox: id, Owner: "ada", ID: c.ID, Sum: c.Sum, Bytes: c.Bytes})
	}
	var out, errs bytes.Buffer
	p := &program{stdout: &out, stderr: &errs}
	if err := p.verifyCopies(t.Context(), store, list, false); err != nil || strings.Count(out.String(), " ok") != 2 {
		t.Fatalf("%v\n%s", err, out.String())
	}
	object := filepath.Join(dir, "cl", "sb2", list[1].ID, "data-000000.age")
	raw, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)-1] ^= 1
	if err := os.WriteFile(object, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	err = p.verifyCopies(t.Context(), store, list, true)
	var found []verified
	if exitCode(err) != exitFailed || json.Unmarshal(out.Bytes(), &found) != nil || len(found) != 2 ||
		found[0].Problem != "" || !strings.Contains(found[1].Problem, "sb2/"+list[1].ID+"/data-000000.age") {
		t.Errorf("%v: %s", err, out.String())
	}
	if err := store.Check(t.Context(), "cl", "sb2", fsm.Copy{ID: list[1].ID, Sum: list[1].Sum}); err != nil {
		t.Errorf("a listing finds it too, so this test shows nothing: %v", err)
	}
	away, err := copystore.Open(t.Context(), "file://"+dir, copyKeys{secrets: noEntries{}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = away.Close() }()
	if err := p.verifyCopies(t.Context(), away, list, false); fsm.CodeOf(err) != fsm.CodeSecretStore ||
		!strings.HasPrefix(err.Error(), "0 of 2 copies are read: ") {
		t.Errorf("with a sealed secret store: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "cl")); err != nil {
		t.Fatal(err)
	}
	if err := p.verifyCopies(t.Context(), store, list, false); fsm.CodeOf(err) != fsm.CodeScheduler {
		t.Errorf("with a store that is not mounted: %v", err)
	}
}

// noEntries is a secret store that is sealed.
type noEntries struct{ bareSecrets }

// Newest implements keyEntries.
func (noEntries) Newest(context.Context, string) (int, error) {
	return 0, fsm.Errorf(fsm.CodeSecretStore, "sealed")
}

// A command reads by the node's secret id and leaves its renewal to the node.
func TestConfig_Vault_ACommandRenewsNoSecretID(t *testing.T) {
	t.Parallel()
	if (Config{}).vaultConfig(nil, nil).Replace != nil {
		t.Error("a command may write the node's secret id")
	}
}
