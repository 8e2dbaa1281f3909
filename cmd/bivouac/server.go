package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/backup"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/cluster/raftmetrics"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/agent"
	"bivouac.dev/bivouac/scheduler/durable"
	"bivouac.dev/bivouac/scheduler/nomad"
	"bivouac.dev/bivouac/secrets"
)

func (p *program) serverCommand() *cobra.Command {
	var configFile string
	var checkOnly, asJSON bool
	cmd := &cobra.Command{
		Use:   "server --config FILE",
		Short: "Run one node of a cluster, on Nomad and Vault",
		Long: `Run one node of a cluster. Its configuration is an HCL file;
deploy/config/node.hcl is a commented example, and the package documentation of
cmd/bivouac the reference.

Nodes with the same bootstrap_expect form a cluster on their first start and
find each other again afterwards, in any order. SIGTERM and SIGINT make the node
unready, hand leadership over, serve on for http { drain_delay }, finish the
requests in progress and stop; a second one ends the process at once.

SIGHUP reads the file again. The log level, limits {} of requests, connections and
trusted_proxies, and http { drain_delay drain_timeout } change at once; the log
names what else changed and needs a restart. A file with mistakes changes nothing.
Certificates, Nomad's token and Vault's secret id are read again when their files
change, without a signal.

--check starts nothing and asks neither Vault nor Nomad. It checks the file, and
the modes, contents and dates of the files that it names, and prints a line for
each: ok, warn or fail. The exit code is 1 if one failed, 2 if the file has
mistakes. Every start logs the lines that are not ok.`,
		Example: `  bivouac server --config /etc/bivouac/node.hcl
  bivouac server --config /etc/bivouac/node.hcl --check
  bivouac server --config /etc/bivouac/node.hcl --check --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON && !checkOnly {
				return usagef("--json needs --check")
			}
			cfg, err := loadConfig(configFile)
			if err != nil {
				return err
			}
			if checkOnly {
				return p.printFindings(inspect(cfg, configFile, time.Now()), asJSON)
			}
			return p.runServer(cmd.Context(), cfg, configFile)
		},
	}
	cmd.Flags().StringVar(&configFile, "config", "", "the node's configuration file")
	cmd.Flags().BoolVar(&checkOnly, "check", false, "only check the configuration and the files that it names")
	cmd.Flags().BoolVar(&asJSON, "json", false, "with --check: print JSON")
	mustRequire(cmd, "config")
	return cmd
}

// runServer runs the node until ctx ends.
func (p *program) runServer(ctx context.Context, cfg Config, configFile string) (err error) {
	level := new(slog.LevelVar)
	level.Set(logLevel(cfg.Log.Level))
	log := newLogger(p.stderr, cfg.Log.Format, level)
	paceCollector()

	life := newLifecycle()
	defer func() { err = errors.Join(err, life.stop(stopGrace)) }()
	release, err := lockDir(cfg.DataDir)
	if err != nil {
		return err
	}
	life.onStop("the lock", func(context.Context) error { return release() })

	logFindings(log.With("node", cfg.NodeName), inspect(cfg, configFile, time.Now()))
	made, err := cfg.parts(log)
	if err != nil {
		return err
	}
	if err := raftmetrics.CollectLibrary(made.registry); err != nil {
		return fmt.Errorf("collecting Raft's metrics: %w", err)
	}
	if made.listener, err = listen(cfg.HTTP.Address); err != nil {
		return err
	}
	if cfg.Metrics != "" {
		if made.metrics, err = listen(cfg.Metrics); err != nil {
			return errors.Join(err, made.listener.Close())
		}
		life.onStop("the metrics' port", func(context.Context) error { made.metrics.Close(); return nil })
	}
	life.onStop("the Nomad client", func(context.Context) error { made.nomad.Close(); return nil })
	life.onStop("the HTTP port", func(context.Context) error { made.listener.Close(); return nil })
	service, err := newSystemd(log, stoppingTime(cfg.HTTP.DrainDelay, cfg.HTTP.DrainTimeout))
	if err != nil {
		return err
	}
	made.systemd = service
	node, err := newApp(made.parts)
	if err != nil {
		return err
	}
	life.start("Vault session", made.vault.Run)
	life.start("Nomad probe", made.nomad.Probe)
	again := &reloader{path: configFile, running: cfg, level: level, node: node, log: made.log}
	life.start("reload", func(ctx context.Context) error { return again.run(ctx, p.reload) })
	return node.run(ctx)
}

// serverParts are the parts of a node and what `bivouac server` runs beside them.
type serverParts struct {
	parts
	vault *secrets.Vault
	nomad *nomad.Runner
}

// parts converts the configuration for the packages.
func (c Config) parts(log *slog.Logger) (serverParts, error) {
	feed := newLogFeed()
	log = feed.attach(log).With("node", c.NodeName)
	shown, err := withoutSecrets(c)
	if err != nil {
		return serverParts{}, err
	}
	registry := newRegistry(readBuildInfo())
	registry.MustRegister(newDiskCollector(c.DataDir, c.Backup.Dir))
	store := fsm.NewStore()
	toVault := c.vaultConfig(log, registry)
	toVault.Replace = durable.Replace
	toVault.InUse = func(path string) int { return store.View().OldestSecret(path) }
	vault, err := secrets.NewVault(toVault)
	if err != nil {
		return serverParts{}, err
	}
	runner, err := nomad.New(c.nomadConfig(log, registry))
	if err != nil {
		return serverParts{}, fmt.Errorf("configuring Nomad: %w", err)
	}
	api, err := c.apiConfig()
	if err != nil {
		return serverParts{}, err
	}
	if api.Page, err = c.UI.open(); err != nil {
		return serverParts{}, err
	}
	dates, err := c.certificateOptions(vault, log)
	if err != nil {
		return serverParts{}, err
	}
	if dates.http != nil {
		api.TLS = dates.http.serverTLS()
	}
	sched := scheduler.DefaultConfig()
	sandboxes := c.Sandboxes
	sched.StartTimeout, sched.StopTimeout = sandboxes.StartTimeout, sandboxes.StopTimeout
	sched.PauseGrace, sched.PlacementGrace = sandboxes.PauseGrace, sandboxes.PlacementGrace
	sched.OrphanRetention, sched.RemovalsPerHour = sandboxes.OrphanRetention, sandboxes.RemovalsPerHour
	sched.CollectInterval, sched.Installation = c.Vault.CollectInterval, c.installation()
	made := parts{
		cluster: c.clusterConfig(), scheduler: sched, workspaces: c.Workspaces, api: api,
		drainDelay: c.HTTP.DrainDelay, secrets: vault,
		runner: runner, log: log, registry: registry, certificates: dates,
		store: store, seeds: c.Seeds, apiURLs: c.Sandboxes.APIURLs,
		backup: backup.Config{Dir: c.Backup.Dir, Interval: c.Backup.Interval, Retain: c.Backup.Retain},
	}
	made.observer = &observer{feed: feed, registry: registry, config: shown}
	made.services = func() []cluster.Service { return servicesOf(runner, vault) }
	return serverParts{parts: made, vault: vault, nomad: runner}, nil
}

func (c Config) clusterConfig() cluster.Config {
	cl := cluster.DefaultConfig()
	cl.NodeName, cl.DataDir = c.NodeName, c.DataDir
	cl.PeerAddress, cl.AdvertiseAddress = c.Peer.Address, c.Peer.Advertise
	cl.TLS = c.Peer.tls()
	cl.BootstrapExpect, cl.RetryJoin = c.BootstrapExpect, c.RetryJoin
	cl.HeartbeatTimeout, cl.ElectionTimeout, cl.LeaderLeaseTimeout = c.Raft.timers()
	cl.SnapshotInterval = cmp.Or(c.Raft.SnapshotInterval, cl.SnapshotInterval)
	cl.SnapshotThreshold = cmp.Or(c.Raft.SnapshotThreshold, cl.SnapshotThreshold)
	cl.TrailingLogs = cmp.Or(c.Raft.TrailingLogs, cl.TrailingLogs)
	cl.TrailingBytes = cmp.Or(c.Raft.TrailingBytes, cl.TrailingBytes)
	cl.ProposeTimeout = cmp.Or(c.Raft.ProposeTimeout, cl.ProposeTimeout)
	cl.ReadTimeout = cmp.Or(c.Raft.ReadTimeout, cl.ReadTimeout)
	cl.DeadAfter, cl.Voters = c.Raft.DeadAfter, c.Raft.Voters
	return cl
}

func (c *PeerConfig) tls() peernet.TLSFiles {
	return peernet.TLSFiles{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}
}

// vaultSigner has Vault's PKI sign.
func (c *PeerConfig) vaultSigner(vault *secrets.Vault) peernet.Signer {
	return func(ctx context.Context, r *x509.CertificateRequest, csr []byte) ([]byte, error) {
		ask := secrets.CertificateRequest{
			Mount: c.PKIMount, Role: c.PKIRole, CSR: csr, CommonName: r.Subject.CommonName, DNSNames: r.DNSNames,
			TTL: c.CertificateLifetime,
		}
		for _, ip := range r.IPAddresses {
			ask.IPs = append(ask.IPs, ip.String())
		}
		return vault.SignCertificate(ctx, ask)
	}
}

// vaultConfig is Vault without Replace: a command that runs beside the node leaves the renewal of the
// secret id to it. One that is root's would take the file from the node.
func (c Config) vaultConfig(log *slog.Logger, registry *prometheus.Registry) secrets.VaultConfig {
	v := c.Vault
	return secrets.VaultConfig{
		Address: v.Address, CAFile: v.CAFile, Namespace: v.Namespace, AuthMount: v.AuthMount,
		RoleID: v.RoleID, RoleIDFile: v.RoleIDFile, SecretIDFile: v.SecretIDFile,
		Mount: v.Mount, Prefix: v.Prefix, NomadNamespace: c.Nomad.Namespace, Grace: v.UnreferencedGrace,
		Retention: v.SecretRetention, Logger: log, Registerer: registry,
	}
}

func (c Config) nomadConfig(log *slog.Logger, registry *prometheus.Registry) nomad.Config {
	n := nomad.DefaultConfig()
	n.Address, n.Region, n.Namespace, n.TokenFile = c.Nomad.Address, c.Nomad.Region, c.Nomad.Namespace, c.Nomad.TokenFile
	n.TLS = nomad.TLSConfig{CAFile: c.Nomad.CAFile, CertFile: c.Nomad.CertFile, KeyFile: c.Nomad.KeyFile}
	n.Datacenters, n.NodePool = c.Nomad.Datacenters, c.Nomad.NodePool
	n.HostNetwork, n.DockerNetwork = c.Nomad.HostNetwork, c.Nomad.DockerNetwork
	n.VolumePlugin, n.LostAfter, n.Variable = c.Nomad.VolumePlugin, c.Nomad.LostAfter, c.Nomad.Variable
	n.VaultMount, n.VaultRole = c.Vault.Mount, c.Nomad.VaultRole
	n.Env = agent.APIEnvironment(c.Sandboxes.APIURLs)
	n.CarryImage, n.CarryCommand = c.Workspaces.Image, c.Workspaces.Command
	n.Logger, n.Registerer = log, registry
	return n
}

// certificateOptions reads the API's certificate.
func (c Config) certificateOptions(vault *secrets.Vault, log *slog.Logger) (o certificateOptions, err error) {
	switch {
	case c.Peer.CAKeyFile != "":
		o.issue = peernet.CAIssuer(c.Peer.CAFile, c.Peer.CAKeyFile, c.Peer.CertificateLifetime)
	case c.Peer.PKIRole != "":
		o.issue = peernet.RequestIssuer(c.Peer.vaultSigner(vault))
	}
	if c.HTTP.CertFile != "" {
		o.http, err = loadCertificate(c.HTTP.CertFile, c.HTTP.KeyFile, log)
	}
	return o, err
}

func (c Config) apiConfig() (httpapi.Config, error) {
	api := httpapi.DefaultConfig()
	api.DrainTimeout = c.HTTP.DrainTimeout
	api.MaxBodyBytes, api.RatePerSecond = c.Limits.BodySize, c.Limits.RatePerSecond
	api.Operator.Snapshots.MaxUpload = c.Limits.SnapshotSize
	api.MaxConnections = cmp.Or(c.Limits.Connections, api.MaxConnections)
	api.MaxConnectionsPerAddress = c.Limits.ConnectionsPerAddress
	for _, s := range c.Limits.TrustedProxies {
		prefix, err := parsePrefix(s)
		if err != nil {
			return api, err
		}
		api.TrustedProxies = append(api.TrustedProxies, prefix)
	}
	api.CORSOrigins, api.OwnMetrics = c.CORS.Origins, c.Metrics != ""
	api.Git.VerifyTokens, api.Git.AllowedHosts = c.Git.VerifyTokens, c.Git.AllowedHosts
	api.SandboxURL = c.Sandboxes.URL
	api.Proxy.Domain, api.Proxy.PublicURL, api.Proxy.Wake = c.Sandboxes.Domain, c.Sandboxes.PublicURL, c.Sandboxes.Wake
	api.Proxy.MaxStale = c.Sandboxes.MaxStale
	return api, nil
}
