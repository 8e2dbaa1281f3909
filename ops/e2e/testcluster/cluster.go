package testcluster

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster/nodeconfig"
)

// Options configures a test cluster.
type Options struct {
	// Bare: Vault is unreachable and Nomad an empty fake, so nothing has to be installed.
	// Everything that needs neither works.
	Bare bool
	// DataDir returns a node's data directory; nil means a folder of its own. It is called once
	// for each node before its start.
	DataDir func(name string) string
	// LogLevel is the nodes' log level, "" for debug, and info of bare ones.
	LogLevel string
	// Tags are build tags of bivouac, comma-separated.
	Tags string
	// Config is HCL appended to every node's configuration.
	Config string
	// Vault is HCL added to every node's vault block.
	Vault string
	// Backend is HCL added to every node's nomad block.
	Backend string
	// Docker also loads the spec "docker" if Docker is reachable.
	Docker bool
	// Specs is the HCL of more specs. AGENT stands for the agent server's path, HOST for the
	// address on which it serves.
	Specs string
	// Nomad is HCL appended to the Nomad agent's configuration.
	Nomad string
	// ACL: Nomad has access control, and the nodes a token with the shipped policy.
	ACL bool
	// Raft is the content of every node's raft block, "" for short logs.
	Raft string
	// Nodes is the number of nodes; 0 means three.
	Nodes int
	// Program is what the nodes run, "" for a bivouac that is built from this tree.
	Program string
	// Overlay names a file for `go build -overlay`, "" for none.
	Overlay string
	// Net is the nodes' network; nil is the loopback interface.
	Net Net
	// Ledger records what the nodes destroy in Nomad and Vault.
	Ledger bool
	// Drain is every node's drain_delay.
	Drain time.Duration
	// Gateway: sandboxes know the nodes' URLs, so they ask models through the nodes.
	Gateway bool
	// Beside is another test cluster whose Nomad and Vault this one shares.
	Beside *Cluster
}

// Net is a network that a test provides for the nodes (ops/e2e/chaos).
type Net interface {
	// Host returns the address of a node, Gateway this process's address there.
	Host(node int) string
	Gateway() string
	// Device returns the network interface with the gateway's address.
	Device() string
	// Command makes a command line that runs another on the node's network.
	Command(node int, command ...string) []string
	// Outside makes a server on the loopback interface reachable for the nodes and returns the
	// address they use. Both are host:port.
	Outside(address string) (string, error)
}

// Cluster is a running test cluster.
type Cluster struct {
	Nomad *local.Nomad
	Vault *local.Vault
	Nodes []*Node
	// Dir is readable by every user, because tasks run there.
	Dir string
	// DrillDir is where a program built with the tag drills looks for the point to die at
	// (scheduler/fault).
	DrillDir string
	// Bivouac and Agent are the programs, Image the agent server's image, "" without Docker.
	// KeyFile holds an operator's key.
	Bivouac, Agent, Image, KeyFile string
	// Ledger is nil unless Options.Ledger is set.
	Ledger *Ledger

	specs []string
	// machines counts the Nomad clients beside the one that is a server too.
	machines int
	net      Net
}

// Required reports whether the environment requires the program (.ci/run does). Otherwise a
// test without it is skipped.
func Required(program string) bool {
	return slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), program)
}

// Need skips the test if the program is missing, or fails it if the program is required.
func Need(t testing.TB, program string, there bool) {
	t.Helper()
	if there {
		return
	}
	if Required(program) {
		t.Fatalf("%s is not there, and BIVOUAC_TEST_REQUIRE names it", program)
	}
	t.Skipf("%s is not there", program)
}

// Start starts a test cluster that ends with the test. The default spec is "raw", with the
// driver raw_exec. If the test fails, it logs what the nodes printed last.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	if !o.Bare {
		for _, program := range []string{"nomad", "vault"} {
			_, err := local.Tool(ctx, program, os.Stderr)
			Need(t, program, err == nil)
		}
	}
	dir, err := os.MkdirTemp("", "bivouac-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	f := &Cluster{
		Dir: dir, DrillDir: filepath.Join(dir, "drill"), KeyFile: filepath.Join(dir, "key"),
		Bivouac: filepath.Join(dir, "bin", "bivouac"), Agent: filepath.Join(dir, "bin", "sandbox-agent"),
		net: o.Net,
	}
	t.Cleanup(func() {
		for _, n := range f.Nodes {
			if t.Failed() {
				t.Logf("%s (%s) said last:\n%s", n.Name, n.Base, local.Tail(n.Log, 40))
			}
		}
	})
	must(t, os.Mkdir(f.DrillDir, 0o700))
	must(t, f.build(ctx, o))
	switch {
	case o.Bare:
	case o.Beside != nil:
		f.Vault, f.Nomad = o.Beside.Vault, o.Beside.Nomad
	default:
		f.startStores(ctx, t, o)
	}
	if o.ACL {
		token, err := f.Nomad.NewToken(ctx)
		must(t, err)
		file := filepath.Join(f.Dir, "nomad-token")
		must(t, os.WriteFile(file, []byte(token), 0o600))
		o.Backend += fmt.Sprintf("\ntoken_file = %q\n", file)
	}
	f.startNodes(ctx, t, o)
	if !o.Bare {
		f.loadSpecs(ctx, t, o)
	}
	return f
}

// startStores starts Vault and Nomad.
func (f *Cluster) startStores(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	var err error
	f.Vault, err = local.StartVault(ctx, local.VaultOptions{Dir: filepath.Join(f.Dir, "vault"), Durable: true})
	must(t, err)
	t.Cleanup(func() { must(t, f.Vault.Close()) })
	if o.Net != nil {
		o.Nomad += fmt.Sprintf("\nclient {\n  network_interface = %q\n}\n", o.Net.Device())
	}
	f.Nomad, err = local.StartNomad(ctx,
		local.NomadOptions{Dir: filepath.Join(f.Dir, "nomad"), Vault: f.Vault, Extra: o.Nomad, ACL: o.ACL})
	must(t, err)
	t.Cleanup(func() { must(t, f.Nomad.Close()) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *Cluster) build(ctx context.Context, o Options) error {
	for pkg, out := range map[string]string{"bivouac": f.Bivouac, "sandbox-agent": f.Agent} {
		if o.Bare && pkg != "bivouac" {
			continue
		}
		if err := f.buildOne(ctx, o, pkg, out); err != nil {
			return err
		}
	}
	return nil
}

func (f *Cluster) buildOne(ctx context.Context, o Options, pkg, out string) error {
	if o.Tags == "" && o.Overlay == "" || pkg != "bivouac" {
		return local.BuildGo(ctx, "./cmd/"+pkg, out)
	}
	root, err := local.Root()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-C", root, "-trimpath", "-ldflags", "-s -w", "-tags", o.Tags,
		"-overlay", o.Overlay, "-o", out, "./cmd/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, msg)
	}
	return nil
}

// Build builds another bivouac with an overlay (Options.Overlay) and returns its path.
func (f *Cluster) Build(t testing.TB, name, overlay string) string {
	t.Helper()
	out := filepath.Join(f.Dir, "bin", name)
	must(t, f.buildOne(t.Context(), Options{Overlay: overlay}, "bivouac", out))
	return out
}

// Run runs one of the program's commands and returns its output.
func (f *Cluster) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := f.Command(t.Context(), args...)
	must(t, err)
	return out
}

// shortLogs makes tests involve snapshots.
const shortLogs = `
  snapshot_threshold = 64
  snapshot_interval  = "2s"
  trailing_logs      = 64
`

// stores fills in what the nodes' configuration says about Nomad and Vault.
func (f *Cluster) stores(ctx context.Context, t testing.TB, o Options, c *nodeconfig.Config) {
	t.Helper()
	secret := "none"
	if o.Bare {
		c.Nomad = emptyNomad(t)
	} else {
		role, err := f.Vault.NewAppRole(ctx, local.AppRoleOptions{})
		must(t, err)
		c.Nomad, c.Vault, c.Role, secret = f.Nomad.Address, f.Vault.Address, role.RoleID, role.SecretID
		if o.Ledger {
			f.Ledger = &Ledger{}
			c.Nomad, c.Vault = f.Ledger.stand(t, c.Nomad), f.Ledger.stand(t, c.Vault)
		}
		c.Nomad, c.Vault = f.outside(t, c.Nomad), f.outside(t, c.Vault)
	}
	must(t, os.WriteFile(c.SecretID, []byte(secret), 0o600))
}

func (f *Cluster) startNodes(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	count := cmp.Or(o.Nodes, 3)
	all := nodeconfig.Config{
		TLS: filepath.Join(f.Dir, "tls"), SecretID: filepath.Join(f.Dir, "secret-id"), LogLevel: cmp.Or(o.LogLevel,
			map[bool]string{true: "info", false: "debug"}[o.Bare]),
		Raft: cmp.Or(o.Raft, shortLogs), Drain: o.Drain, Backend: o.Backend, Secrets: o.Vault, More: o.Config, Expect: count,
	}
	f.stores(ctx, t, o, &all)
	f.Run(t, "tls", "init", "--dir", all.TLS)
	for i := range count {
		name := fmt.Sprintf("n%d", i+1)
		dir := filepath.Join(f.Dir, name)
		must(t, os.Mkdir(dir, 0o700))
		n := &Node{
			cluster: f,
			place:   i,
			Name:    name,
			Program: o.Program,
			Log:     filepath.Join(dir, "log"),
			file:    filepath.Join(dir, "node.hcl"),
			config:  all,
		}
		n.host, n.config.HTTP, n.config.Peer = f.place(t, i)
		n.config.Data = filepath.Join(dir, "data")
		if o.DataDir != nil {
			n.config.Data = o.DataDir(name)
		}
		all.Peers = append(all.Peers, n.config.Peer)
		if o.Gateway {
			all.APIURLs = append(all.APIURLs, "http://"+n.config.HTTP)
		}
		f.Nodes = append(f.Nodes, n)
	}
	for _, n := range f.Nodes {
		must(t, n.Configure(func(c *nodeconfig.Config) { c.Name, c.Peers, c.APIURLs = n.Name, all.Peers, all.APIURLs }))
		n.Start(t)
		t.Cleanup(n.Kill)
	}
	for _, n := range f.Nodes {
		n.Ready(t)
	}
	key := f.Run(t, "keys", "bootstrap", "--config", f.Nodes[0].file)
	must(t, os.WriteFile(f.KeyFile, []byte(key+"\n"), 0o600))
	for _, n := range f.Nodes {
		n.Key = key
	}
}

// place chooses a node's host and its addresses for clients and peers.
func (f *Cluster) place(t testing.TB, i int) (host, address, peer string) {
	t.Helper()
	if f.net == nil {
		return "127.0.0.1", freeAddress(t), freeAddress(t)
	}
	host = f.net.Host(i)
	return host, host + ":8080", host + ":8301"
}

// outside returns the URL at which the nodes reach one of our servers.
func (f *Cluster) outside(t testing.TB, url string) string {
	t.Helper()
	if f.net == nil {
		return url
	}
	address, err := f.net.Outside(strings.TrimPrefix(url, "http://"))
	must(t, err)
	return "http://" + address
}

func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := local.FreePort()
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

const rawSpec = `spec "raw" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "AGENT"
  args        = ["--host", "HOST", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 50
  memory      = 64
  port "AGENT_SERVER" {}
}
`

// MockSpec is the spec "mock". It needs no resources: Nomad's report alone makes it RUNNING.
// extra is HCL in it.
func MockSpec(extra string) string {
	return `
spec "mock" {
  driver      = "mock_driver"
  readiness   = "allocation"
  working_dir = "project"
  cpu         = 10
  memory      = 10
  port "AGENT_SERVER" {}
  ` + extra + `
}
`
}

const dockerSpec = `spec "docker" {
  driver       = "docker"
  image        = "IMAGE"
  args         = ["--port", "${port.agent_server}"]
  working_dir  = "/workspace/project"
  cpu          = 50
  memory       = 64
  port "AGENT_SERVER" {
    container = 8000
  }
  volume {
    path = "/workspace"
  }
}
`

func (f *Cluster) loadSpecs(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	f.specs = []string{rawSpec, o.Specs}
	if o.Docker && local.DockerReachable(ctx) {
		f.Image = fmt.Sprintf("bivouac-test/e2e:%d-%d", os.Getpid(), time.Now().UnixNano())
		must(t, local.BuildImage(ctx, f.Agent, f.Image))
		t.Cleanup(func() { must(t, local.RemoveImage(f.Image)) })
		f.specs = append(f.specs, dockerSpec)
	} else if o.Docker && Required("docker") {
		t.Fatal("Docker is not reachable, and BIVOUAC_TEST_REQUIRE names it")
	}
	f.SetDefault(t, "raw")
}

// SetDefault makes the spec the default one by putting it first.
func (f *Cluster) SetDefault(t testing.TB, spec string) {
	t.Helper()
	first := func(text string) int {
		if strings.HasPrefix(strings.TrimSpace(text), fmt.Sprintf("spec %q", spec)) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(f.specs, func(a, b string) int { return first(a) - first(b) })
	host := "127.0.0.1"
	if f.net != nil {
		host = f.net.Gateway()
	}
	text := strings.NewReplacer(`"AGENT"`, strconv.Quote(f.Agent), `"HOST"`, strconv.Quote(host), `"IMAGE"`,
		strconv.Quote(f.Image)).Replace(strings.Join(f.specs, "\n"))
	file := filepath.Join(f.Dir, "specs.hcl")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	// The command itself waits only a few seconds for a leader.
	Eventually(t, "the specs are applied", func() error {
		_, err := f.Command(t.Context(), "specs", "apply", file, "--replace", "--address", f.Nodes[1].Base,
			"--api-key-file", f.KeyFile)
		return err
	})
}

// Drivers lists the loaded specs, one per driver.
func (f *Cluster) Drivers() []string {
	if f.Image == "" {
		return []string{"raw"}
	}
	return []string{"raw", "docker"}
}
