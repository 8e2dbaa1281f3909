package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/page"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/process"
	"bivouac.dev/bivouac/secrets"
)

// devSpecs are the sandbox specs of a new development cluster.
//
//go:embed specs/dev.hcl
var devSpecs []byte

const (
	// devUser owns the key of a development cluster.
	devUser = "dev"
	// devCollectGrace is the age from which an unreferenced secret is deleted; see
	// secrets.SealedOptions.
	devCollectGrace = 15 * time.Minute
	// devDrainTimeout bounds how long Ctrl-C waits for requests and upgraded connections.
	devDrainTimeout = 2 * time.Second
	// readyPoll is the interval at which starting nodes are checked.
	readyPoll = 10 * time.Millisecond
)

// devCluster is several nodes in this process with the resources they share.
type devCluster struct {
	layout devLayout
	log    *slog.Logger
	key    apikey.Key
	specs  []fsm.Spec
	nodes  []*devNode
	hosts  []string   // httpapi.Config.Hosts
	page   *page.Page // the web page that all nodes serve
	// origins are the web origins of --cors-origin.
	origins []string
	life    *lifecycle // the shared resources, stopped after the nodes

	// apiPorts are the nodes' HTTP ports, bound before the sandboxes get their addresses.
	apiPorts []net.Listener
	sealed   *secrets.Sealed
	runner   *process.Runner
}

// devNode is one node of a devCluster. It keeps its addresses over a restart.
type devNode struct {
	name, http, peer string
	app              *app
	cancel           context.CancelCauseFunc
	done             chan error
}

// openDev locks the data directory and binds every port, so that mistakes show before anything
// runs. If it fails it closes everything it opened.
func openDev(o devOptions) (*devCluster, error) {
	dir, err := filepath.Abs(o.dataDir)
	if err != nil {
		return nil, fmt.Errorf("the data directory can't be used: %w", err)
	}
	c := &devCluster{layout: devLayout{dir}, hosts: append([]string{}, o.allowHosts...), origins: o.corsOrigins,
		life: newLifecycle()}
	if err := c.open(o); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *devCluster) open(o devOptions) (err error) {
	if c.specs, err = parseDevSpecs(); err != nil {
		return err
	}
	if c.page, err = ownPage(); err != nil {
		return err
	}
	release, err := lockDir(c.layout.dir)
	if err != nil {
		return err
	}
	c.life.onStop("the lock", func(context.Context) error { return release() })
	c.life.onStop("dev.json", func(context.Context) error { return c.layout.removeInfo() })
	if err := errors.Join(c.layout.checkNodes(o.nodes), c.layout.removeInfo()); err != nil {
		return err
	}
	if c.apiPorts, err = listenHTTP(o.httpPort, o.nodes); err != nil {
		return err
	}
	c.life.onStop("the HTTP ports", func(context.Context) error { closeAll(c.apiPorts); return nil })
	if err := c.openShared(o); err != nil {
		return err
	}
	return c.openNodes(o)
}

// openShared opens what the nodes share: log, key, secrets and runner.
func (c *devCluster) openShared(o devOptions) (err error) {
	file, err := openLogFile(c.layout.logs())
	if err != nil {
		return err
	}
	c.life.onStop("the log", func(context.Context) error { return file.Close() })
	c.log = newLogger(file, o.logFormat, logLevel(o.logLevel))
	if c.key, err = c.layout.loadKey(); err != nil {
		return err
	}
	if c.sealed, err = secrets.OpenSealed(c.layout.secrets(), secrets.SealedOptions{Grace: devCollectGrace}); err != nil {
		return fmt.Errorf("opening the secret store: %w", err)
	}
	c.life.onStop("the secret store", func(context.Context) error { return c.sealed.Close() })
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program for the sandboxes: %w", err)
	}
	c.runner, err = process.New(process.Config{
		Dir: c.layout.sandboxes(), AgentBinary: binary, AgentArgs: []string{sandboxAgentName},
		Env:     agent.APIEnvironment(c.apiURLs()),
		Secrets: sharedSecrets{secrets.NewGuard(c.sealed, nil, c.log)}, Logger: c.log,
	})
	if err != nil {
		return fmt.Errorf("opening the sandbox runner: %w", err)
	}
	c.life.onStop("the sandboxes", func(context.Context) error { return c.runner.Close() })
	return nil
}

// apiURLs are the nodes' URLs.
func (c *devCluster) apiURLs() []string {
	var urls []string
	for _, port := range c.apiPorts {
		urls = append(urls, "http://"+port.Addr().String())
	}
	return urls
}

// openNodes makes the certificates, binds all ports and wires the nodes.
func (c *devCluster) openNodes(o devOptions) error {
	names := nodeNames(o.nodes)
	if err := c.layout.makeCertificates(names); err != nil {
		return err
	}
	peerPorts, err := c.layout.listenPeers(names)
	if err != nil {
		return err
	}
	c.life.onStop("the peer ports", func(context.Context) error { closeAll(peerPorts); return nil })
	for i, name := range names {
		c.nodes = append(c.nodes,
			&devNode{name: name, http: c.apiPorts[i].Addr().String(), peer: peerPorts[i].Addr().String()})
	}
	for i, n := range c.nodes {
		expect := len(c.nodes)
		if o.restore != "" && i == 0 {
			expect = 1 // the other nodes join after the restore
		}
		if err := c.wireExpecting(n, c.apiPorts[i], peerPorts[i], expect); err != nil {
			return err
		}
	}
	return nil
}

// wire makes the node's app on bound ports.
func (c *devCluster) wire(n *devNode, api, peer net.Listener) error {
	return c.wireExpecting(n, api, peer, len(c.nodes))
}

// wireExpecting is wire for a node whose first cluster has expect nodes.
func (c *devCluster) wireExpecting(n *devNode, api, peer net.Listener, expect int) (err error) {
	cl := cluster.DefaultConfig()
	cl.NodeName, cl.DataDir, cl.Listener = n.name, c.layout.node(n.name), peer
	cl.PeerAddress, cl.AdvertiseAddress = n.peer, n.peer
	cl.TLS = tlsDir(c.layout.tls()).node(n.name)
	cl.BootstrapExpect = expect
	cl.RaiseProtocol = true // one program runs all nodes
	for _, other := range c.nodes {
		cl.RetryJoin = append(cl.RetryJoin, other.peer)
	}
	web := httpapi.DefaultConfig()
	web.Git.VerifyTokens = false // a development cluster calls no git provider
	web.Proxy.Domain, web.RatePerSecond = proxy.DomainLocal, defaultRate
	web.Hosts, web.Page = c.hosts, c.page
	sched := scheduler.DefaultConfig()
	sched.Installation.PerUser, sched.Installation.Overall = defaultLimits()
	sched.Installation.Git.Unverified = !web.Git.VerifyTokens
	sched.Installation.LLM.Hosts = []string{fsm.HostsVendors, fsm.HostLocal} // a model server on this machine
	web.DrainTimeout = devDrainTimeout
	feed, registry := newLogFeed(), newRegistry(readBuildInfo())
	n.app, err = newApp(parts{
		observer: &observer{feed: feed, registry: registry},
		cluster:  cl, scheduler: sched, api: web, listener: api,
		apiURLs: c.apiURLs(), secrets: c.sealed, runner: c.runner, log: feed.attach(c.log).With("node", n.name),
		registry: registry,
		certificates: certificateOptions{
			issue: peernet.CAIssuer(cl.TLS.CAFile, tlsDir(c.layout.tls()).caKey(), peernet.DefaultNodeLifetime),
		},
	})
	return err
}

// begin runs all nodes, from a saved state if the options name one, and returns when they are
// ready. failed receives the error of a node that ends without being asked to.
func (c *devCluster) begin(ctx context.Context, failed chan error, o devOptions) error {
	if o.restore != "" {
		if err := c.startRestored(ctx, failed, o); err != nil {
			return err
		}
		return c.ready(ctx, failed)
	}
	for _, n := range c.nodes {
		n.start(failed)
	}
	return c.ready(ctx, failed)
}

func (n *devNode) start(failed chan<- error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	n.cancel, n.done = cancel, make(chan error, 1)
	go func() {
		err := n.app.run(ctx)
		if ctx.Err() == nil {
			failed <- fmt.Errorf("node %s: %w", n.name, err)
		}
		n.done <- err
	}()
}

// stop stops a running node and waits for it, or closes one that never ran. With
// cluster.ErrAbrupt as the cause it transfers no leadership.
func (n *devNode) stop(cause error) error {
	if n.app == nil {
		return nil
	}
	app := n.app
	n.app = nil
	if n.cancel == nil {
		return app.close()
	}
	n.cancel(cause)
	n.cancel = nil
	return <-n.done
}

// stop stops all nodes at once and then the shared resources, including the sandboxes. No node
// transfers leadership, since none remains.
func (c *devCluster) stop() error {
	errs := make([]error, len(c.nodes))
	var stopping sync.WaitGroup
	for i, n := range c.nodes {
		stopping.Go(func() { errs[i] = n.stop(cluster.ErrAbrupt) })
	}
	stopping.Wait()
	return errors.Join(append(errs, c.life.stop(stopGrace))...)
}

// ready waits until every node can serve. It gives a new cluster its specs and its key, and
// publishes dev.json.
func (c *devCluster) ready(ctx context.Context, failed <-chan error) error {
	if err := c.wait(ctx, failed, func(n *devNode) error { return n.app.node.Ready() }); err != nil {
		return err
	}
	fresh := !c.nodes[0].app.store.View().AnyAPIKey()
	if fresh { // below it specs have no agents, and browsers no sessions
		err := c.wait(ctx, failed, func(n *devNode) error {
			if v := n.app.store.View().ProtocolVersion(); v < fsm.VersionSessions {
				return fmt.Errorf("the cluster is at protocol version %d", v)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := c.provision(ctx); err != nil {
		return err
	}
	if fresh { // else the first conversation may be refused its model server on this machine
		err := c.wait(ctx, failed, func(n *devNode) error {
			if n.app.store.View().ConfigIndex() == 0 {
				return errors.New("its configuration is not in force yet")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := c.allowOrigins(ctx); err != nil {
		return err
	}
	index := c.nodes[0].app.store.Index()
	for _, n := range c.nodes {
		if err := n.app.store.Wait(ctx, index); err != nil {
			return fmt.Errorf("waiting for node %s to catch up: %w", n.name, err)
		}
	}
	return c.layout.writeInfo(c.info())
}

// wait polls every node until check returns nil.
func (c *devCluster) wait(ctx context.Context, failed <-chan error, check func(*devNode) error) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for _, n := range c.nodes {
		for {
			err := check(n)
			if err == nil {
				break
			}
			select {
			case <-tick.C:
			case err := <-failed:
				return err
			case <-ctx.Done():
				return fmt.Errorf("node %s is not ready: %w", n.name, err)
			}
		}
	}
	return nil
}

// leader returns the node that leads, the first if none is known to. A leader's own commands need no
// operator's key.
func (c *devCluster) leader() *cluster.Node {
	for _, n := range c.nodes {
		if n.app.node.Status().State == cluster.StateLeader {
			return n.app.node
		}
	}
	return c.nodes[0].app.node
}

// provision gives the cluster the specs and the key unless it has them. The commands are
// idempotent: after a crash the next start repeats them.
func (c *devCluster) provision(ctx context.Context) error {
	node := c.leader()
	specs := fsm.NewCommand(uuid.NewString(), time.Now(), "", &fsm.SpecApplyBody{Specs: c.specs, OnlyIfNone: true})
	if _, err := node.Propose(ctx, specs); err != nil {
		return fmt.Errorf("loading the sandbox specs: %w", err)
	}
	view, err := node.View(ctx, cluster.Linearizable)
	if err != nil {
		return fmt.Errorf("reading the cluster's keys: %w", err)
	}
	if k := view.APIKeyByLookup(c.key.Lookup); k != nil && k.Hash == c.key.Hash && k.Valid(time.Now()) {
		return nil
	}
	if view.AnyAPIKey() && view.APIKeyByLookup(c.key.Lookup) != nil {
		if c.key, err = c.layout.newKey(); err != nil { // a revoked key is not reissued
			return err
		}
	}
	body := bootstrapBody(c.key, devUser, "bivouac dev")
	body.Bootstrap = !view.AnyAPIKey()
	if _, err := node.Propose(ctx, fsm.NewCommand(uuid.NewString(), time.Now(), "", body)); err != nil {
		return fmt.Errorf("issuing the API key: %w", err)
	}
	return nil
}

// allowOrigins puts the origins of --cors-origin into the cluster's configuration.
func (c *devCluster) allowOrigins(ctx context.Context) error {
	if len(c.origins) == 0 {
		return nil
	}
	node := c.leader()
	view, err := node.View(ctx, cluster.Linearizable)
	if err != nil {
		return fmt.Errorf("reading the cluster's configuration: %w", err)
	}
	next := view.Installation()
	next.CORS.Origins = c.origins
	body := &fsm.InstallationConfigureBody{Installation: next}
	if _, err := node.Propose(ctx, fsm.NewCommand(uuid.NewString(), time.Now(), "", body)); err != nil {
		return fmt.Errorf("allowing the origins of --cors-origin: %w", err)
	}
	return nil
}

// info is the content of dev.json.
func (c *devCluster) info() devInfo {
	info := devInfo{APIKey: c.key.Value}
	for _, n := range c.nodes {
		info.Nodes = append(info.Nodes, devInfoNode{Name: n.name, HTTP: "http://" + n.http})
	}
	return info
}

// parseDevSpecs reads the embedded specs.
func parseDevSpecs() ([]fsm.Spec, error) {
	f, diags := hclsyntax.ParseConfig(devSpecs, "dev.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diagsError(diags)
	}
	return decodeSpecs(f.Body)
}
