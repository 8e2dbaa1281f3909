package nomad_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// permission is one of those that deploy/nomad/bivouac.policy.hcl gives.
type permission struct {
	name string
	// text is what is taken out of the policy.
	text *regexp.Regexp
	// by is what stands in its place.
	by string
	// fails is the step that fails without it, with the capability that its error names.
	fails, capability string
}

// omit returns the policy without the permission.
func (p permission) omit(policy string) string { return p.text.ReplaceAllString(policy, p.by) }

// permissions has every permission of the policy. The test fails for one that is not in it.
func permissions() []permission {
	word := func(name string) *regexp.Regexp { return regexp.MustCompile(`\n?\s*"` + name + `",?`) }
	block := func(begin string) *regexp.Regexp { return regexp.MustCompile(`(?s)\n` + begin + ` \{.*?\n\}`) }
	return []permission{
		{"list-jobs", word("list-jobs"), "", "list", "list-jobs"},
		{"read-job", word("read-job"), "", "list", "read-job"},
		{"submit-job", word("submit-job"), "", "start", "submit-job"},
		{"read-logs", word("read-logs"), "", "logs", "read-logs"},
		{"host-volume-create", word("host-volume-create"), "", "start", "host-volume-create"},
		{"host-volume-delete", word("host-volume-delete"), "", "remove the workspace", "host-volume-delete"},
		{"alloc-exec", word("alloc-exec"), "", "copy the workspace", "alloc-exec"},
		{"variable read", regexp.MustCompile(`"read", `), "", "read the mark", "read"},
		{"variable write", regexp.MustCompile(`(?:, )?"write"\]`), "]", "write the mark", "write"},
		{"host_volume write", block(`host_volume "sandbox-\*"`), "", "start", "submit-job"},
		{"node read", block(`node`), "", "list", "read"},
	}
}

// withoutBinds is Nomad's default, and what deploy/nomad/client.hcl leaves: docker tasks mount volumes
// through Nomad alone.
const withoutBinds = `
plugin "docker" {
  config {
    gc {
      image = false
    }
    volumes {
      enabled = false
    }
  }
}
`

// privileged is a Nomad with ACLs and the namespace of a cluster.
type privileged struct {
	*testing.T
	own    *stack
	policy string
}

// TestPolicy_EachPermissionIsNeeded: without any one permission of deploy/nomad/bivouac.policy.hcl a
// step of a sandbox's life fails, and its error names the permission.
func TestPolicy_EachPermissionIsNeeded(t *testing.T) {
	t.Parallel()
	p := newPrivileged(t)
	list := permissions()
	rest := p.policy
	for _, one := range list {
		less := one.omit(rest)
		if less == rest {
			t.Fatalf("%s is not in the policy any more:\n%s", one.name, rest)
		}
		rest = less
	}
	if left := regexp.MustCompile(`"[a-z-]+"|policy\s*=`).FindAllString(withoutComments(rest),
		-1); len(left) != 1 { // the namespace's name
		t.Fatalf("permissions that this test does not know: %q in\n%s", left, rest)
	}

	t.Run("all", func(t *testing.T) {
		t.Parallel()
		if step, err := p.life(t, p.policy); err != nil {
			t.Errorf("%s: %v", step, err)
		}
	})
	for _, one := range list {
		t.Run("without "+one.name, func(t *testing.T) {
			t.Parallel()
			step, err := p.life(t, one.omit(p.policy))
			t.Logf("without %s: %s: %v", one.name, step, err)
			if err == nil {
				t.Fatalf("nothing needs %s: take it out of deploy/nomad/bivouac.policy.hcl", one.name)
			}
			var denied *scheduler.Denied
			if step != one.fails || !errors.As(err, &denied) || denied.Capability != one.capability {
				t.Errorf("%s: %v; want %s to fail for want of %s", step, err, one.fails, one.capability)
			}
		})
	}
}

func withoutComments(text string) string {
	return regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(text, "")
}

func newPrivileged(t *testing.T) *privileged {
	t.Helper()
	s := useStack(t)
	p := &privileged{T: t, own: &stack{agent: s.agent, image: s.image}}
	(&bench{T: t, s: s}).needDocker()
	dir := t.TempDir()
	var err error
	if p.own.vault, err = local.StartVault(t.Context(), local.VaultOptions{Dir: filepath.Join(dir, "vault")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.own.vault.Close() })
	p.own.nomad, err = local.StartNomad(t.Context(), local.NomadOptions{
		Dir: filepath.Join(dir, "nomad"), Vault: p.own.vault, Namespace: "sandboxes", ACL: true, NodePool: "sandboxes",
		Drivers: []string{"docker"}, Extra: withoutBinds,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.own.nomad.Close(); err != nil {
			t.Error(err)
		}
	})
	if p.own.client, err = api.NewClient(&api.Config{
		Address:   p.own.nomad.Address,
		SecretID:  p.own.nomad.Token,
		Namespace: "sandboxes",
	}); err != nil {
		t.Fatal(err)
	}
	raw, err := deploy.Files.ReadFile("nomad/bivouac.policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	p.policy = string(raw)
	return p
}

// token makes a token with a policy.
func (p *privileged) token(t *testing.T, rules string) string {
	t.Helper()
	name := fmt.Sprintf("p%d", time.Now().UnixNano())
	in := map[string]string{"Name": name, "Rules": rules}
	if err := p.own.nomad.Do(t.Context(), http.MethodPost, "acl/policy/"+name, in, nil); err != nil {
		t.Fatalf("%v in\n%s", err, rules)
	}
	var token struct{ SecretID string }
	request := map[string]any{"Name": name, "Type": "client", "Policies": []string{name}}
	if err := p.own.nomad.Do(t.Context(), http.MethodPost, "acl/token", request, &token); err != nil {
		t.Fatal(err)
	}
	return token.SecretID
}

// life takes a sandbox through its life with a policy, and returns the first step that fails. What is
// left of it is removed with all permissions.
func (p *privileged) life(t *testing.T, rules string) (step string, err error) {
	t.Helper()
	id := fmt.Sprintf("p%d", time.Now().UnixNano())
	cfg := nomad.DefaultConfig()
	cfg.Address, cfg.VaultMount, cfg.KillTimeout = p.own.nomad.Address, "secret", 2*time.Second
	cfg.Namespace, cfg.NodePool = "sandboxes", "sandboxes"
	cfg.Variable, cfg.CarryImage = "bivouac/"+id, p.own.image
	runner := func(token string) *nomad.Runner {
		cfg := cfg
		cfg.Token = token
		r, err := nomad.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	r := runner(p.token(t, rules))
	b := &bench{T: t, s: p.own, cluster: "cluster-" + id, r: runner(p.own.nomad.Token), config: cfg}
	job := scheduler.Job{
		SandboxID: id, ClusterID: b.cluster, KeyRef: fsm.SecretRef{Path: "sandboxes/" + id + "/session", Version: 1},
		Template: fsm.Template{
			Driver: fsm.DriverDocker, Image: p.own.image, NetworkMode: "bridge", VolumePath: "/workspace", Args: []string{
				"--port",
				"${port.agent_server}",
			},
			WorkingDir: "/workspace/project", CPU: 100, Memory: 64, Ports: map[string]int{fsm.PortAgentServer: 8000},
		},
	}
	data := map[string]any{"data": map[string]string{"key": key(id), "secret_key": "canary-secret"}}
	b.must(p.own.vault.Do(t.Context(), http.MethodPost, "secret/data/sandboxes/sandbox-"+id+"/session", data, nil))
	t.Cleanup(func() { b.remove(job) })
	return p.steps(b, r, &job)
}

// steps are everything that a leader does in Nomad. Observations between them have all permissions.
func (p *privileged) steps(b *bench, r *nomad.Runner, job *scheduler.Job) (step string, err error) {
	ctx := b.Context()
	sync := func() { job.ModifyIndex = b.observed(*job).ModifyIndex }
	gone := func(o scheduler.Observed) bool { return o.Live == 0 && (o.Stopped || !o.Exists) }
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"read the mark", func() error { _, _, _, err := r.ReadMark(ctx); return err }},
		{"write the mark", func() error {
			return r.WriteMark(ctx, fsm.Mark{Cluster: "c", History: "h", Nonce: "n", Time: time.Unix(1, 0)}, 0)
		}},
		{"list", func() error { _, err := r.List(ctx, job.ClusterID); return err }},
		{"watch", func() error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return r.Watch(ctx, job.ClusterID, func(scheduler.Observed) {})
		}},
		{"start", func() error { sync(); return r.Start(ctx, *job) }},
		{"logs", func() error {
			o := b.look(*job, "placement", func(o scheduler.Observed) bool { return o.Placement != nil && o.Up })
			job.ModifyIndex, job.RevertTo, job.HasVersion = o.ModifyIndex, o.Version, true
			log, err := r.Logs(ctx, *job, scheduler.LogPart{Stream: "stderr", Tail: -1})
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, log)
			return errors.Join(err, log.Close())
		}},
		{"follow the logs", func() error {
			log, err := r.Logs(ctx, *job, scheduler.LogPart{Stream: "stderr", Follow: true})
			if err != nil {
				return err
			}
			return log.Close()
		}},
		{"stop", func() error { return r.Stop(ctx, *job) }},
		{"copy the workspace", func() error {
			b.look(*job, "stopped", gone)
			list, err := r.ListWorkspaces(ctx, *job)
			if err != nil || len(list) != 1 {
				return fmt.Errorf("%d workspaces: %w", len(list), err)
			}
			return r.Export(ctx, *job, list[0], strings.NewReader(""), io.Discard)
		}},
		{"start again", func() error {
			sync()
			return r.Start(ctx, *job)
		}},
		{"remove the job", func() error {
			sync()
			if err := r.Stop(ctx, *job); err != nil {
				return err
			}
			b.look(*job, "stopped", gone)
			sync()
			kept := *job
			kept.KeepWorkspace = true
			return r.Remove(ctx, kept)
		}},
		{"remove the workspace", func() error {
			o := b.look(*job, "a workspace without a job", func(o scheduler.Observed) bool { return !o.Exists && o.Workspace })
			return r.RemoveWorkspace(ctx,
				scheduler.Workspace{SandboxID: job.SandboxID, ClusterID: job.ClusterID, Birth: o.Birth, ID: o.WorkspaceID})
		}},
	} {
		if err := s.do(); err != nil {
			return s.name, err
		}
	}
	return "", nil
}

// TestPolicy_AllElseIsRefused: what a node does not need is refused to its token.
func TestPolicy_AllElseIsRefused(t *testing.T) {
	t.Parallel()
	p := newPrivileged(t)
	token := p.token(t, p.policy)
	node, err := p.own.nomad.NodeID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	job := map[string]any{"Job": map[string]any{
		"ID": "theirs", "Name": "theirs", "Type": "batch", "Datacenters": []string{"*"}, "NodePool": "sandboxes",
		"TaskGroups": []any{map[string]any{"Name": "g", "Tasks": []any{map[string]any{
			"Name": "t", "Driver": "raw_exec", "Config": map[string]any{"command": "/bin/sleep", "args": []string{"60"}},
		}}}},
	}}
	if err := p.own.nomad.Do(t.Context(), http.MethodPost, "jobs?namespace=default", job, nil); err != nil {
		t.Fatal(err)
	}
	variable := func(path string) map[string]any {
		return map[string]any{"Path": path, "Items": map[string]string{"a": "b"}}
	}
	if err := p.own.nomad.Do(t.Context(), http.MethodPut, "var/theirs?namespace=sandboxes", variable("theirs"),
		nil); err != nil {
		t.Fatal(err)
	}
	for _, refused := range []struct {
		method, path string
		in           any
	}{
		{http.MethodPost, "jobs?namespace=default", job},
		{http.MethodGet, "job/theirs?namespace=default", nil},
		{http.MethodDelete, "job/theirs?namespace=default&purge=true", nil},
		{http.MethodGet, "jobs?namespace=default", nil},
		{http.MethodPut, "var/bivouac/x?namespace=default", variable("bivouac/x")},
		{http.MethodGet, "var/theirs?namespace=sandboxes", nil},
		{http.MethodPut, "var/theirs?namespace=sandboxes", variable("theirs")},
		{http.MethodDelete, "var/bivouac/x?namespace=sandboxes", nil},
		{http.MethodPost, "job/theirs/dispatch?namespace=sandboxes", map[string]any{}},
		{http.MethodPost, "node/" + node + "/eligibility", map[string]any{"Eligibility": "ineligible"}},
		{http.MethodPost, "node/" + node + "/drain", map[string]any{"DrainSpec": map[string]any{"Deadline": 1}}},
		{http.MethodPost, "node/" + node + "/purge", nil},
		// With it a folder of the machine would become a volume.
		{http.MethodPut, "volume/host/register?namespace=sandboxes", map[string]any{"Volume": map[string]any{
			"Name": "sandbox-root", "Namespace": "sandboxes", "NodeID": node, "HostPath": "/", "PluginID": "mkdir",
			"RequestedCapabilities": []any{map[string]any{"AttachmentMode": "file-system", "AccessMode": "single-node-writer"}},
		}}},
		{http.MethodPost, "namespace/mine", map[string]any{"Name": "mine"}},
		{http.MethodPost, "node/pool/mine", map[string]any{"Name": "mine"}},
		{http.MethodGet, "acl/tokens", nil},
		{http.MethodPost, "acl/token", map[string]any{"Name": "n", "Type": "management"}},
		{http.MethodPut, "system/gc", nil},
		{http.MethodGet, "operator/raft/configuration", nil},
		{http.MethodGet, "operator/scheduler/configuration", nil},
		{http.MethodGet, "operator/snapshot", nil},
		{http.MethodGet, "agent/self", nil},
		{http.MethodGet, "agent/monitor", nil},
	} {
		err := p.own.nomad.DoAs(t.Context(), token, refused.method, refused.path, refused.in, nil)
		var status *local.StatusError
		forbidden := errors.As(err, &status) && (status.Status == http.StatusForbidden ||
			strings.Contains(err.Error(), "Permission denied"))
		if !forbidden {
			t.Errorf("%s %s: %v; want it refused", refused.method, refused.path, err)
		}
	}
	// No command in a container of another namespace, and no files.
	for _, refused := range []string{
		"client/allocation/%s/exec?task=t&command=%%5B%%22id%%22%%5D",
		"client/fs/cat/%s?path=t/local",
		"client/fs/ls/%s?path=/",
	} {
		var allocs []struct{ ID string }
		err := await(t.Context(), func() error {
			if err := p.own.nomad.Do(t.Context(), http.MethodGet, "job/theirs/allocations?namespace=default", nil,
				&allocs); err != nil {
				return err
			}
			if len(allocs) == 0 {
				return errors.New("no allocation yet")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		path := fmt.Sprintf(refused, allocs[0].ID)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.own.nomad.Address+"/v1/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Nomad-Token", token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		// A file that may not be read is a 200 with the refusal as its text.
		if err != nil || resp.StatusCode/100 != 4 && string(body) != "Permission denied" {
			t.Errorf("GET %s: %s %.200s %v; want it refused", path, resp.Status, body, err)
		}
	}
}
