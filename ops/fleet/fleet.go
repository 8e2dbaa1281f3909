package fleet

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
)

// Options say what a fleet is made of.
type Options struct {
	// Tags are build tags of bivouac, comma-separated.
	Tags string
	// Config is HCL appended to every node's configuration.
	Config string
	// Vault is HCL added to every node's vault block.
	Vault string
	// Backend is HCL added to every node's nomad block.
	Backend string
	// Docker also loads the spec "docker", where Docker is reachable.
	Docker bool
	// Specs is HCL of more specs; AGENT stands for the agent server's path, HOST
	// for the address it serves at.
	Specs string
	// Nomad is HCL appended to the Nomad agent's configuration.
	Nomad string
	// Raft is the inside of every node's raft block, "" for short logs.
	Raft string
	// Nodes is how many nodes there are, three where it is 0.
	Nodes int
	// Overlay names a file for `go build -overlay`, "" for none.
	Overlay string
	// Net is where the nodes are; nil is the loopback interface.
	Net Net
	// Ledger writes down what the nodes destroy in Nomad and Vault.
	Ledger bool
	// Beside is a fleet whose Nomad and Vault this one shares, with a cluster of
	// its own.
	Beside *Fleet
}

// Net is a network of the drill's own that the nodes are in (ops/nemesis).
type Net interface {
	// Host is the address of a node, Gateway this process's own there.
	Host(node int) string
	Gateway() string
	// Device is the network interface that has the gateway's address.
	Device() string
	// Command makes a command that runs where the node is.
	Command(node int, program string, args ...string) *exec.Cmd
	// Outside makes a server of the loopback interface reachable for the nodes
	// and gives the address they reach it by; both are host:port.
	Outside(address string) (string, error)
}

// Fleet is what Start started.
type Fleet struct {
	Nomad *local.Nomad
	Vault *local.Vault
	Nodes []*Node
	// Dir is readable by every user: tasks run there.
	Dir string
	// DrillDir is where a program built with the tag drills looks for the
	// point to die at (scheduler/fault).
	DrillDir string
	// Bivouac and Agent are the programs, Image the agent server's, "" without
	// Docker; KeyFile holds an operator's key.
	Bivouac, Agent, Image, KeyFile string
	// Ledger is nil unless Options.Ledger asks for it.
	Ledger *Ledger

	specs []string
	net   Net
}

// Required reports whether the environment says that the program must be there
// (.ci/run does); else its absence skips a test.
func Required(program string) bool {
	return slices.Contains(strings.Split(os.Getenv("BIVOUAC_TEST_REQUIRE"), ","), program)
}

// Need skips the test, or fails it where the program is required.
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

// Start starts everything, and ends it with the test. The default spec is
// "raw", of raw_exec.
func Start(t testing.TB, o Options) *Fleet {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Nomad and a real Vault")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	for _, program := range []string{"nomad", "vault"} {
		_, err := local.Tool(ctx, program, os.Stderr)
		Need(t, program, err == nil)
	}
	dir, err := os.MkdirTemp("", "bivouac-fleet-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	f := &Fleet{
		Dir: dir, DrillDir: filepath.Join(dir, "drill"), KeyFile: filepath.Join(dir, "key"),
		Bivouac: filepath.Join(dir, "bin", "bivouac"), Agent: filepath.Join(dir, "bin", "sandbox-agent"),
		net: o.Net,
	}
	must(t, os.Mkdir(f.DrillDir, 0o700))
	must(t, f.build(ctx, o))
	if o.Beside != nil {
		f.Vault, f.Nomad = o.Beside.Vault, o.Beside.Nomad
	} else {
		f.startStores(ctx, t, o)
	}
	f.startNodes(ctx, t, o)
	f.loadSpecs(ctx, t, o)
	return f
}

// startStores starts Vault and Nomad.
func (f *Fleet) startStores(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	var err error
	f.Vault, err = local.StartVault(ctx, local.VaultOptions{Dir: filepath.Join(f.Dir, "vault"), Durable: true})
	must(t, err)
	t.Cleanup(func() { must(t, f.Vault.Close()) })
	if o.Net != nil {
		o.Nomad += fmt.Sprintf("\nclient {\n  network_interface = %q\n}\n", o.Net.Device())
	}
	f.Nomad, err = local.StartNomad(ctx, local.NomadOptions{Dir: filepath.Join(f.Dir, "nomad"), Vault: f.Vault, Extra: o.Nomad})
	must(t, err)
	t.Cleanup(func() { must(t, f.Nomad.Close()) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *Fleet) build(ctx context.Context, o Options) error {
	for pkg, out := range map[string]string{"bivouac": f.Bivouac, "sandbox-agent": f.Agent} {
		if err := f.buildOne(ctx, o, pkg, out); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) buildOne(ctx context.Context, o Options, pkg, out string) error {
	root, err := local.Root()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-C", root, "-trimpath", "-tags", o.Tags, "-overlay", o.Overlay, "-o", out, "./cmd/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, msg)
	}
	return nil
}

// Run carries out one of the program's commands and gives what it printed.
func (f *Fleet) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := f.Command(t.Context(), args...)
	must(t, err)
	return out
}

const nodeConfig = `
node_name        = "NODE"
data_dir         = "data"
bootstrap_expect = EXPECT
retry_join       = [PEERS]
http {
  address = "HTTP"
}
peer {
  address   = "PEER"
  ca_file   = "../tls/ca.pem"
  cert_file = "../tls/NODE.pem"
  key_file  = "../tls/NODE-key.pem"
}
raft {
RAFT
}
nomad {
  address = "NOMAD"
BACKEND
}
vault {
  address        = "VAULT"
  role_id        = "ROLE"
  secret_id_file = "../secret-id"
MORE
}
git {
  verify_tokens = false
}
log {
  level  = "debug"
  format = "json"
}
`

// defaultRaft has short logs, so that a drill sees snapshots.
const defaultRaft = `
  snapshot_threshold = 64
  snapshot_interval  = "2s"
  trailing_logs      = 64
`

func (f *Fleet) startNodes(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	role, err := f.Vault.NewAppRole(ctx, local.AppRoleOptions{})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(f.Dir, "secret-id"), []byte(role.SecretID), 0o600))
	tls := filepath.Join(f.Dir, "tls")
	f.Run(t, "tls", "init", "--dir", tls)
	var hosts, addresses, peers []string
	count := cmp.Or(o.Nodes, 3)
	for i := range count {
		host, address, peer := f.place(t, i)
		hosts, addresses, peers = append(hosts, host), append(addresses, address), append(peers, peer)
	}
	nomad, vault := f.Nomad.Address, f.Vault.Address
	if o.Ledger {
		f.Ledger = &Ledger{}
		nomad, vault = f.Ledger.stand(t, nomad), f.Ledger.stand(t, vault)
	}
	nomad, vault = f.outside(t, nomad), f.outside(t, vault)
	for i := range count {
		name := fmt.Sprintf("n%d", i+1)
		f.Run(t, "tls", "issue", "--dir", tls, "--node", name, "--host", hosts[i])
		dir := filepath.Join(f.Dir, name)
		n := &Node{
			fleet: f, place: i, Name: name, Client: Client{Base: "http://" + addresses[i]},
			config: filepath.Join(dir, "node.hcl"), Log: filepath.Join(dir, "log"), Data: filepath.Join(dir, "data"), Peer: peers[i],
			TLS: memberTLS(tls, name),
		}
		must(t, os.Mkdir(dir, 0o700))
		text := strings.NewReplacer(
			"NODE", name, "EXPECT", strconv.Itoa(count), "RAFT", cmp.Or(o.Raft, defaultRaft), "PEERS", `"`+strings.Join(peers, `", "`)+`"`, "HTTP", addresses[i], "PEER", peers[i],
			"NOMAD", nomad, "VAULT", vault, "ROLE", role.RoleID, "MORE", o.Vault, "BACKEND", o.Backend,
		).Replace(nodeConfig) + o.Config
		must(t, os.WriteFile(n.config, []byte(text), 0o600))
		f.Nodes = append(f.Nodes, n)
		n.Start(t)
		t.Cleanup(n.Kill)
	}
	for _, n := range f.Nodes {
		n.Ready(t)
	}
	key := f.Run(t, "keys", "bootstrap", "--config", f.Nodes[0].config)
	must(t, os.WriteFile(f.KeyFile, []byte(key+"\n"), 0o600))
	for _, n := range f.Nodes {
		n.Key = key
	}
}

// place chooses a node's host and its addresses for clients and peers.
func (f *Fleet) place(t testing.TB, i int) (host, address, peer string) {
	t.Helper()
	if f.net == nil {
		return "127.0.0.1", freeAddress(t), freeAddress(t)
	}
	host = f.net.Host(i)
	return host, host + ":8080", host + ":8301"
}

// outside is the URL by which the nodes reach a server of ours.
func (f *Fleet) outside(t testing.TB, url string) string {
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
  command     = "AGENT"
  args        = ["--host", "HOST", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 50
  memory      = 64
  port "AGENT_SERVER" {}
}
`

const dockerSpec = `spec "docker" {
  driver       = "docker"
  image        = "IMAGE"
  args         = ["--port", "${port.agent_server}"]
  working_dir  = "/workspace/project"
  cpu          = 50
  memory       = 64
  network_mode = "host"
  port "AGENT_SERVER" {}
  volume {
    path = "/workspace"
  }
}
`

func (f *Fleet) loadSpecs(ctx context.Context, t testing.TB, o Options) {
	t.Helper()
	f.specs = []string{rawSpec, o.Specs}
	if o.Docker && local.DockerReachable(ctx) {
		f.Image = fmt.Sprintf("bivouac-test/fleet:%d-%d", os.Getpid(), time.Now().UnixNano())
		must(t, local.BuildImage(ctx, f.Agent, f.Image))
		t.Cleanup(func() { must(t, local.RemoveImage(f.Image)) })
		f.specs = append(f.specs, dockerSpec)
	} else if o.Docker && Required("docker") {
		t.Fatal("Docker is not reachable, and BIVOUAC_TEST_REQUIRE names it")
	}
	f.SetDefault(t, "raw")
}

// SetDefault makes the spec the one that sandboxes of no named spec have: the
// first.
func (f *Fleet) SetDefault(t testing.TB, spec string) {
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
	text := strings.NewReplacer(`"AGENT"`, strconv.Quote(f.Agent), `"HOST"`, strconv.Quote(host), `"IMAGE"`, strconv.Quote(f.Image)).Replace(strings.Join(f.specs, "\n"))
	file := filepath.Join(f.Dir, "specs.hcl")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	f.Run(t, "specs", "apply", file, "--replace", "--address", f.Nodes[1].Base, "--api-key-file", f.KeyFile)
}

// Drivers names the specs that were loaded with a driver of their own.
func (f *Fleet) Drivers() []string {
	if f.Image == "" {
		return []string{"raw"}
	}
	return []string{"raw", "docker"}
}

// Tail gives the last lines of a file.
func Tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
