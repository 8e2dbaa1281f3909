package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// serversWiped: Nomad's servers lose their data, the clients keep their disks. Nomad ends the
// unknown tasks and has lost the workspaces' registrations, so the sandboxes report that instead of
// starting with empty ones. The files are still on the client. The operator registers the volumes
// again, under other names, because the client keeps the former ones. Then the sandboxes run with
// their files.
func (o *operators) serversWiped(t *testing.T) {
	running, paused := o.begin(t), o.begin(t)
	o.node.Change(t, paused, "pause")
	o.node.AwaitSandbox(t, paused, "PAUSED")
	volumes := map[string]map[string]any{}
	for _, id := range []string{running, paused} {
		volumes[id] = o.volume(t, id)
	}
	o.marked(t)
	if err := o.Nomad.WipeServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.Vault.TrustNomad(t.Context(), o.Nomad.Address); err != nil {
		t.Fatal(err)
	}
	o.releases(t, fsm.FindingMarkLost)
	o.says(t, running, "workspace volume sandbox-"+running, "ERROR")
	o.node.Change(t, paused, "resume")
	o.says(t, paused, "workspace volume sandbox-"+paused, "ERROR")
	sb, err := o.node.Sandbox(running)
	if err != nil {
		t.Fatal(err)
	}
	for id, volume := range volumes {
		if got := o.workspaceOnDisk(t, id); got != volume["HostPath"] {
			t.Errorf("the workspace of %s is at %s, Nomad said %s", id, got, volume["HostPath"])
		}
		testcluster.Eventually(t, "Nomad takes the volume, its client being back", func() error {
			return o.Nomad.Do(t.Context(), http.MethodPut, "volume/host/register", map[string]any{"Volume": volume}, nil)
		})
		o.recovers(t, id)
		hasFile(t, o.node.AwaitSandbox(t, id, "RUNNING"), workspaceFile)
	}
	o.node.Change(t, paused, "delete")
	o.end(t, running)
	t.Logf("--- verdict: %s: the servers' state wiped: both sandboxes said %q, "+
		"and were back with their files once their volumes were registered again",
		o.spec, sb.Detail())
}

// marked waits until the cluster's mark is in Nomad: a loss before the first can't be noticed.
func (o *operators) marked(t *testing.T) {
	t.Helper()
	testcluster.Eventually(t, "the mark is in Nomad", func() error {
		var vars []struct{ Path string }
		err := o.Nomad.Do(t.Context(), http.MethodGet, "vars?prefix=bivouac/&namespace=*", nil, &vars)
		if err == nil && len(vars) == 0 {
			err = errors.New("there is no variable below bivouac/")
		}
		return err
	})
}

// releases waits until the cluster holds because of the finding, which touches no sandbox, and
// releases the hold as an operator does.
func (o *operators) releases(t *testing.T, finding string) {
	t.Helper()
	flags := []string{"--address", o.node.Base, "--api-key-file", o.KeyFile}
	testcluster.Eventually(t, "the cluster holds: "+finding, func() error {
		out, err := o.Command(t.Context(), append([]string{"operator", "hold", "status", "--json"}, flags...)...)
		if err == nil && !strings.Contains(out, `"`+finding+`"`) {
			err = errors.New(out)
		}
		return err
	})
	o.Run(t, append([]string{"operator", "hold", "release", "--yes"}, flags...)...)
}

// volume returns the specification with which an operator registers a sandbox's volume again,
// as `nomad volume status` shows it.
func (o *operators) volume(t *testing.T, id string) map[string]any {
	t.Helper()
	var list []struct{ ID, Name string }
	if err := o.Nomad.Do(t.Context(), http.MethodGet, "volumes?type=host", nil, &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		if v.Name != "sandbox-"+id {
			continue
		}
		var full map[string]any
		if err := o.Nomad.Do(t.Context(), http.MethodGet, "volume/host/"+v.ID, nil, &full); err != nil {
			t.Fatal(err)
		}
		spec := map[string]any{}
		for _, name := range []string{
			"Name",
			"Namespace",
			"NodeID",
			"NodePool",
			"HostPath",
			"PluginID",
			"Constraints",
			"RequestedCapabilities",
			"Parameters",
		} {
			spec[name] = full[name]
		}
		spec["Name"] = v.Name + ".2"
		return spec
	}
	t.Fatalf("there is no volume of %s", id)
	return nil
}

// workspaceOnDisk finds a sandbox's workspace on the client by its marker file.
func (o *operators) workspaceOnDisk(t *testing.T, id string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(o.Nomad.Dir, "data", "*", "*", ".bivouac", "sandbox"))
	for _, marker := range found {
		raw, readErr := os.ReadFile(marker)
		err = errors.Join(err, readErr)
		if strings.Contains(string(raw), id) {
			return filepath.Dir(filepath.Dir(marker))
		}
	}
	t.Fatal(fmt.Errorf("no workspace of %s on the client, only %v: %w", id, found, err))
	return ""
}
