package nomad_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/deploy"
	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/nomad"
)

// Each permission of the shipped policy that is left out is named, and no other; so is what the
// clients lack.
func TestRunner_Examine_NamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	useStack(t)
	n, err := local.StartNomad(t.Context(), local.NomadOptions{Dir: filepath.Join(t.TempDir(), "nomad"), ACL: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	admin, err := api.NewClient(&api.Config{Address: n.Address, SecretID: n.Token})
	if err != nil {
		t.Fatal(err)
	}
	policy, err := deploy.Files.ReadFile("nomad/bivouac.policy.hcl")
	if err != nil {
		t.Fatal(err)
	}
	docker := strings.Replace(string(policy), `namespace "sandboxes"`, `namespace "default"`, 1)
	shipped := strings.Replace(docker, `"alloc-exec",`, `"alloc-exec", "alloc-node-exec",`, 1)
	count := 0
	token := func(rules string) string {
		t.Helper()
		count++
		name := fmt.Sprintf("p%d", count)
		if _, err := admin.ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, nil); err != nil {
			t.Fatal(err)
		}
		made, _, err := admin.ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made.SecretID
	}
	cfg := nomad.DefaultConfig()
	cfg.Address = n.Address
	// examine returns the lines that are not ok.
	examine := func(cfg nomad.Config, drivers ...fsm.Driver) (bad []string) {
		t.Helper()
		r, err := nomad.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for _, c := range r.Examine(t.Context(), drivers) {
			if c.Result != nomad.CheckOK {
				bad = append(bad, c.Result+" "+c.Subject+": "+c.Detail)
			}
			t.Log(c)
		}
		return bad
	}
	only := func(got []string, want string) {
		t.Helper()
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("not the one line %q: %q", want, got)
		}
	}
	good := token(shipped)
	with := func(change func(*nomad.Config)) nomad.Config {
		c := cfg
		c.Token = good
		change(&c)
		return c
	}
	if bad := examine(with(func(*nomad.Config) {}), fsm.DriverRawExec); len(bad) > 0 {
		t.Fatalf("the shipped policy: %q", bad)
	}
	noExec := token(docker)
	only(examine(with(func(c *nomad.Config) { c.Token = noExec }), fsm.DriverRawExec),
		"warn nomad.permission: the token's policies lack alloc-node-exec on the namespace default")
	for _, test := range []struct{ from, to, want string }{
		{`"alloc-exec", `, "", "the token's policies lack alloc-exec on the namespace default"},
		{`"submit-job", `, "", "the token lacks submit-job on the namespace default"},
		{`"read-job", `, "", "the token lacks read-job on the namespace default"},
		{`"list-jobs", `, "", "the token lacks list-jobs on the namespace default"},
		{`"read-logs",`, "", "the token's policies lack read-logs on the namespace default"},
		{`"host-volume-create", `, `"host-volume-read", `, "the token lacks host-volume-create on the namespace default"},
		{`"host-volume-delete"`, "", "the token lacks host-volume-delete on the namespace default"},
		{
			`capabilities = ["read", "write"]`,
			`capabilities = ["write"]`,
			"the token lacks read on the variable bivouac/bivouac in the namespace default",
		},
		{
			`capabilities = ["read", "write"]`,
			`capabilities = ["read"]`,
			"the token lacks write on the variable bivouac/bivouac in the namespace default",
		},
		{`host_volume "sandbox-*"`, `host_volume "other-*"`, `the token's policies lack write on host_volume "sandbox-*"`},
	} {
		if !strings.Contains(shipped, test.from) {
			t.Fatalf("the policy has no %s", test.from)
		}
		lesser := token(strings.Replace(shipped, test.from, test.to, 1))
		only(examine(with(func(c *nomad.Config) { c.Token = lesser }), fsm.DriverRawExec),
			"fail nomad.permission: "+test.want)
	}
	blind := token(strings.Replace(shipped, "node {\n  policy = \"read\"\n}", "", 1))
	bad := examine(with(func(c *nomad.Config) { c.Token = blind }))
	if len(bad) != 2 || bad[0] != "fail nomad.permission: the token lacks read on nodes: "+
		"apply deploy/nomad/bivouac.policy.hcl again" || !strings.HasPrefix(
		bad[1],
		"warn nomad.version: ",
	) {
		t.Errorf("without node:read: %q", bad)
	}
	for name, test := range map[string]struct {
		cfg     nomad.Config
		drivers []fsm.Driver
		want    string
	}{
		"no token": {cfg, nil, "fail nomad.token: Nomad's ACLs are on and nomad { token_file } is not set"},
		"unknown": {
			with(func(c *nomad.Config) { c.Token = "11111111-2222-3333-4444-555555555555" }),
			nil,
			"fail nomad.token: Nomad does not know the token",
		},
		"management": {with(func(c *nomad.Config) { c.Token = n.Token }), nil, "warn nomad.token: it is a management token"},
		"driver": {
			with(func(*nomad.Config) {}),
			[]fsm.Driver{"qemu_of_nobody"},
			"fail nomad.drivers: no client has a healthy driver qemu_of_nobody",
		},
		"node pool": {
			with(func(c *nomad.Config) { c.NodePool = "elsewhere" }),
			nil,
			"fail nomad.clients: none of 1 clients takes jobs in the node pool elsewhere",
		},
		"plugin": {
			with(func(c *nomad.Config) { c.VolumePlugin = "zfs" }),
			nil,
			"fail nomad.volume_plugin: no client has the volume plugin zfs",
		},
		"network": {
			with(func(c *nomad.Config) { c.HostNetwork = "private" }),
			nil,
			"fail nomad.host_network: no client has the host_network private",
		},
		"unreachable": {
			with(func(c *nomad.Config) { c.Address = "http://127.0.0.1:1" }),
			nil,
			"fail nomad: http://127.0.0.1:1 does not answer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad := examine(test.cfg, test.drivers...)
			if name == "no token" || name == "unknown" { // what nobody may ask is not known
				bad = bad[:min(1, len(bad))]
			}
			if name == "node pool" && len(bad) == 2 { // a job can't be planned there
				bad = bad[1:]
			}
			only(bad, test.want)
		})
	}
	if list, _, err := admin.Jobs().List(nil); err != nil || len(list) > 0 {
		t.Errorf("it left jobs: %v, %v", list, err)
	}
	if list, _, err := admin.HostVolumes().List(nil, nil); err != nil || len(list) > 0 {
		t.Errorf("it left volumes: %v, %v", list, err)
	}
	if list, _, err := admin.Variables().List(nil); err != nil || len(list) > 0 {
		t.Errorf("it left variables: %v, %v", list, err)
	}
}
