package local

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/deploy"
)

// stackNodes is how many Bivouac nodes the stack has.
const stackNodes = 3

// The preferred ports of the stack; taken ones are replaced.
const (
	balancerPort = 8400
	nodePort     = 8401 // and the next two; peer ports are ten higher
	vaultPort    = 8200
	nomadPort    = 4646
)

// stackNamespace and stackPool are the Nomad namespace and the node pool of the stack's sandboxes.
const (
	stackNamespace = "sandboxes"
	stackPool      = "sandboxes"
)

// Stack is what Up started: the content of stack.json in its directory.
type Stack struct {
	Dir   string `json:"dir"`
	Vault string `json:"vault,omitempty"`
	Nomad string `json:"nomad,omitempty"`
	// NomadTokenFile holds Nomad's management token.
	NomadTokenFile string `json:"nomad_token_file,omitempty"`
	// Nodes are Bivouac's.
	Nodes []StackNode `json:"nodes,omitempty"`
	// Balancer is HAProxy's address, "" if it is not installed.
	Balancer string `json:"balancer,omitempty"`
	// APIKeyFile holds an operator's key.
	APIKeyFile string `json:"api_key_file,omitempty"`
	// Image is the sandbox image that was built, "" without Docker.
	Image string `json:"image,omitempty"`
	// Network is the docker network of the sandboxes, "" where they are on docker's own bridge.
	Network string `json:"network,omitempty"`
}

// StackNode is one `bivouac server`.
type StackNode struct {
	Name string `json:"name"`
	HTTP string `json:"http"` // http://127.0.0.1:<port>
	Pid  int    `json:"pid"`
	Log  string `json:"log"`
}

// Address returns the URL for clients: the load balancer's, else the first node's.
func (s *Stack) Address() string {
	if s.Balancer != "" {
		return s.Balancer
	}
	return s.Nodes[0].HTTP
}

// builder is an Up in progress.
type builder struct {
	stack    *Stack
	progress io.Writer
	undo     []func() error
	vault    *Vault
	nomad    *Nomad
	// balancerPort is HAProxy's, 0 where it is not installed. inside is the balancer's address in the
	// sandboxes' docker network, "" where they are not in one.
	balancerPort int
	// docker: the sandboxes are containers.
	docker bool
	inside string
}

// ErrAlreadyUp means that a program of a stack runs in that directory.
var ErrAlreadyUp = errors.New("the stack is already up; stop it first (make stack-down)")

// Up starts the real stack on this machine in dir, which it creates: Vault, Nomad, three
// Bivouac nodes with mutual TLS, and HAProxy if it is installed. It loads the sandbox specs and
// returns when all is ready. The programs outlive this process; Down stops them. If it fails,
// or ctx ends, it stops what it had started and leaves the logs. It writes its progress to
// progress.
func Up(ctx context.Context, dir string, progress io.Writer) (stack *Stack, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if running(dir) {
		return nil, ErrAlreadyUp
	}
	if err := clear(dir); err != nil {
		return nil, err
	}
	b := &builder{stack: &Stack{Dir: dir}, progress: progress}
	defer func() {
		if err == nil {
			return
		}
		fmt.Fprintln(progress, "stopping what was started")
		for i := len(b.undo) - 1; i >= 0; i-- {
			err = errors.Join(err, b.undo[i]())
		}
	}()
	for _, s := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"building bivouac and sandbox-agent", b.build},
		{"starting Vault", b.startVault},
		{"making the sandboxes' network", b.makeNetwork},
		{"opening it to the balancer", b.openNetwork},
		{"starting Nomad", b.startNomad},
		{"making certificates and keys", b.makeKeys},
		{"starting three nodes", b.startNodes},
		{"starting HAProxy", b.startBalancer},
		{"issuing the first API key", b.bootstrap},
		{"loading sandbox specs", b.loadSpecs},
	} {
		fmt.Fprintln(progress, s.what)
		done := tick(progress, s.what)
		err := s.do(ctx)
		done()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.what, err)
		}
		if err := b.save(); err != nil {
			return nil, err
		}
	}
	return b.stack, nil
}

func (b *builder) path(elem ...string) string {
	return filepath.Join(append([]string{b.stack.Dir}, elem...)...)
}

func (b *builder) save() error {
	raw, err := json.MarshalIndent(b.stack, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(b.path("stack.json"), append(raw, '\n'), 0o600)
}

func (b *builder) onFail(fn func() error) { b.undo = append(b.undo, fn) }

// build makes the stack's own copies, so that `make build` does not change running programs.
func (b *builder) build(ctx context.Context) error {
	for _, name := range []string{"bivouac", "sandbox-agent"} {
		if err := BuildGo(ctx, "./cmd/"+name, b.path("bin", name)); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) startVault(ctx context.Context) error {
	port, err := preferPort(vaultPort)
	if err != nil {
		return err
	}
	b.vault, err = StartVault(ctx,
		VaultOptions{Dir: b.path("vault"), Port: port, Durable: true, Detach: true, Progress: b.progress})
	if err != nil {
		return err
	}
	b.onFail(b.vault.Close)
	b.stack.Vault = b.vault.Address
	return nil
}

func (b *builder) startNomad(ctx context.Context) error {
	port, err := preferPort(nomadPort)
	if err != nil {
		return err
	}
	driver := "raw_exec"
	if b.docker = DockerReachable(ctx); b.docker {
		driver = "docker"
	}
	b.nomad, err = StartNomad(ctx, NomadOptions{
		Dir: b.path("nomad"), Port: port, Vault: b.vault, Namespace: stackNamespace, Drivers: []string{
			driver,
		}, NodePool: stackPool,
		ACL: true, Detach: true, Progress: b.progress,
	})
	if err != nil {
		return err
	}
	b.onFail(b.nomad.Close)
	b.stack.Nomad, b.stack.NomadTokenFile = b.nomad.Address, b.path("nomad-management-token")
	token, err := b.nomad.NewToken(ctx)
	return errors.Join(
		err,
		writeFile(b.stack.NomadTokenFile, []byte(b.nomad.Token+"\n"), 0o600),
		writeFile(b.path("nomad-token"), []byte(token+"\n"), 0o600),
	)
}

// bivouac runs a command of our program.
func (b *builder) bivouac(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.path("bin", "bivouac"), args...)
	cmd.Env = cleanEnv()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("bivouac %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

func (b *builder) makeKeys(ctx context.Context) error {
	if _, err := b.bivouac(ctx, "tls", "init", "--dir", b.path("tls")); err != nil {
		return err
	}
	for i := range stackNodes {
		if _, err := b.bivouac(ctx, "tls", "issue", "--dir", b.path("tls"), "--node", nodeName(i)); err != nil {
			return err
		}
	}
	role, err := b.vault.NewAppRole(ctx, AppRoleOptions{NomadNamespace: stackNamespace})
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(b.path("approle", "role-id"), []byte(role.RoleID+"\n"), 0o600),
		writeFile(b.path("approle", "secret-id"), []byte(role.SecretID+"\n"), 0o600),
	)
}

func nodeName(i int) string { return "node-" + strconv.Itoa(i+1) }

func (b *builder) startNodes(ctx context.Context) error {
	var addresses, peers []string
	for i := range stackNodes {
		h, err := preferPort(nodePort + i)
		if err != nil {
			return err
		}
		p, err := preferPort(nodePort + 10 + i)
		if err != nil {
			return err
		}
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(h)))
		peers = append(peers, net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
	}
	var started []*Process
	for i := range stackNodes {
		p, err := b.startNode(nodeName(i), addresses[i], peers[i], peers, addresses)
		if err != nil {
			return err
		}
		started = append(started, p)
		b.stack.Nodes = append(b.stack.Nodes,
			StackNode{Name: nodeName(i), HTTP: "http://" + addresses[i], Pid: p.Pid(), Log: p.log})
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i, n := range b.stack.Nodes {
		err := until(ctx, started[i], "being ready", func(ctx context.Context) error {
			return call{method: http.MethodGet, url: n.HTTP + "/ready"}.do(ctx)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) startNode(name, httpAddress, peerAddress string, peers, nodes []string) (*Process, error) {
	text, err := deploy.Files.ReadFile("config/stack.hcl")
	if err != nil {
		return nil, err
	}
	config := b.path(name, "node.hcl")
	filled := strings.NewReplacer(
		"NODE_NAME", name, "HTTP_ADDRESS", httpAddress, "PEER_ADDRESS", peerAddress,
		"PEERS", quoted(peers), "NOMAD_URL", b.nomad.Address, "NAMESPACE", stackNamespace, "VAULT_URL", b.vault.Address,
		"NODE_POOL", stackPool, "DOCKER_NETWORK", b.stack.network(), "API_URLS", quoted(b.apiURLs(nodes)),
	).Replace(string(text))
	if err := writeFile(config, []byte(filled), 0o600); err != nil {
		return nil, err
	}
	p, err := startServer(b.stack.Dir, name)
	if err != nil {
		return nil, err
	}
	b.onFail(func() error { return p.Stop(stopNode) })
	return p, nil
}

func (b *builder) startBalancer(ctx context.Context) error {
	if HAProxyInstalled() == "" {
		fmt.Fprintln(b.progress, "  it is not installed; every node serves everything")
		return nil
	}
	var nodes, also []string
	if b.inside != "" {
		also = append(also, b.inside)
	}
	for _, n := range b.stack.Nodes {
		nodes = append(nodes, strings.TrimPrefix(n.HTTP, "http://"))
	}
	h, err := StartHAProxy(ctx,
		HAProxyOptions{Dir: b.path("haproxy"), Port: b.balancerPort, Also: also, Nodes: nodes, Detach: true})
	if err != nil {
		return err
	}
	b.onFail(h.Close)
	b.stack.Balancer = h.Address
	return until(ctx, h.proc, "a ready node behind it", func(ctx context.Context) error {
		return call{method: http.MethodGet, url: h.Address + "/ready"}.do(ctx)
	})
}

func (b *builder) bootstrap(ctx context.Context) error {
	key, err := b.bivouac(ctx, "keys", "bootstrap", "--config", b.path(nodeName(0), "node.hcl"))
	if err != nil {
		return err
	}
	b.stack.APIKeyFile = b.path("api-key")
	return writeFile(b.stack.APIKeyFile, []byte(key+"\n"), 0o600)
}

// imageOf returns the tag of a stack's sandbox image. Each stack has its own, so that one can
// be removed beside another.
func imageOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return fmt.Sprintf("bivouac/sandbox-agent:stack-%x", sum[:4])
}

// makeNetwork makes the docker network of the sandboxes, with its rules, if Docker is reachable and
// this user may.
func (b *builder) makeNetwork(ctx context.Context) error {
	if !DockerReachable(ctx) {
		return nil
	}
	if err := SandboxNetworkPossible(ctx); err != nil {
		fmt.Fprintf(b.progress, "  %v: the sandboxes are on docker's own bridge, and reach each other and this machine\n",
			err)
		return nil
	}
	network := networkOf(b.stack.Dir)
	b.onFail(network.Down)
	b.stack.Network = network.Name
	return network.Up(ctx)
}

// openNetwork lets the sandboxes reach the balancer, and it alone of this machine: the nodes are on
// loopback.
func (b *builder) openNetwork(ctx context.Context) (err error) {
	if HAProxyInstalled() == "" {
		return nil
	}
	if b.balancerPort, err = preferPort(balancerPort); err != nil || !DockerReachable(ctx) {
		return err
	}
	if b.inside, err = gatewayOf(ctx, b.stack.network()); err != nil || b.stack.Network == "" {
		return err
	}
	network := networkOf(b.stack.Dir)
	network.API = []string{net.JoinHostPort(b.inside, strconv.Itoa(b.balancerPort))}
	return network.Up(ctx)
}

// apiURLs are the nodes as sandboxes reach them: containers by the balancer, if there is one, other
// sandboxes by the nodes' own addresses.
func (b *builder) apiURLs(nodes []string) (urls []string) {
	switch {
	case b.inside != "":
		return []string{"http://" + net.JoinHostPort(b.inside, strconv.Itoa(b.balancerPort))}
	case b.docker:
		return nil
	}
	for _, n := range nodes {
		urls = append(urls, "http://"+n)
	}
	return urls
}

// quoted is a list as HCL has it, without its brackets.
func quoted(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return `"` + strings.Join(list, `", "`) + `"`
}

// networkOf returns the network of a stack's sandboxes. Each stack has its own.
func networkOf(dir string) SandboxNetwork {
	sum := sha256.Sum256([]byte(dir))
	id := fmt.Sprintf("%x", sum[:4])
	return SandboxNetwork{Name: "bivouac-stack-" + id, Bridge: "bvs" + id}
}

// network returns docker's name of the sandboxes' network.
func (s *Stack) network() string { return cmp.Or(s.Network, "bridge") }

// loadSpecs loads the docker spec if Docker is reachable, else the raw_exec spec.
func (b *builder) loadSpecs(ctx context.Context) error {
	agent := b.path("bin", "sandbox-agent")
	file := "config/stack-agent.hcl"
	if DockerReachable(ctx) {
		image := imageOf(b.stack.Dir)
		full, err := BuildSandboxImage(ctx, agent, image)
		if file = "config/stack-docker.hcl"; err == nil && !full {
			fmt.Fprintln(b.progress,
				"  the sandboxes have no shell and no git: `make sandbox-image` builds an image that has them")
			file, err = "config/stack-bare.hcl", BuildImage(ctx, agent, image)
		}
		if err != nil {
			return err
		}
		b.onFail(func() error { return RemoveImage(image) })
		b.stack.Image = image
	} else {
		fmt.Fprintln(b.progress, "  Docker is not reachable; sandboxes run with raw_exec")
	}
	text, err := deploy.Files.ReadFile(file)
	if err != nil {
		return err
	}
	specs := b.path("specs.hcl")
	filled := strings.NewReplacer(`"IMAGE"`, strconv.Quote(b.stack.Image), `"AGENT_BINARY"`,
		strconv.Quote(agent)).Replace(string(text))
	if err := writeFile(specs, []byte(filled), 0o600); err != nil {
		return err
	}
	_, err = b.bivouac(ctx, "specs", "apply", specs, "--replace", "--address", b.stack.Nodes[0].HTTP, "--api-key-file",
		b.stack.APIKeyFile)
	return err
}
