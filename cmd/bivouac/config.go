package main

import (
	"cmp"
	"math"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/scheduler"
	"bivouac.dev/bivouac/scheduler/nomad"
	"bivouac.dev/bivouac/secrets"
)

// Config is what `bivouac server` reads from its file. doc.go is the
// reference; keep it and deploy/config/node.hcl in step with this file.
type Config struct {
	NodeName        string   `hcl:"node_name"`
	DataDir         string   `hcl:"data_dir"`
	BootstrapExpect int      `hcl:"bootstrap_expect"`
	RetryJoin       []string `hcl:"retry_join"`

	HTTP      HTTPConfig      `hcl:"http"`
	Peer      PeerConfig      `hcl:"peer"`
	Raft      RaftConfig      `hcl:"raft"`
	Nomad     NomadConfig     `hcl:"nomad"`
	Vault     VaultConfig     `hcl:"vault"`
	Sandboxes SandboxesConfig `hcl:"sandboxes"`
	// Policy is the installation's policy; see fsm.Installation.
	Policy fsm.Policy   `hcl:"policy"`
	Limits LimitsConfig `hcl:"limits"`
	Git    GitConfig    `hcl:"git"`
	CORS   CORSConfig   `hcl:"cors"`
	LLM    LLMConfig    `hcl:"llm"`
	Backup BackupConfig `hcl:"backup"`
	Log    LogConfig    `hcl:"log"`
	// Workspaces says where workspaces are copied to.
	Workspaces WorkspacesConfig `hcl:"workspaces"`
	UI         UIConfig         `hcl:"ui"`
	// Metrics is the address of the metrics' own listener, "" for the API's.
	Metrics string `hcl:"metrics.address"`
	// Seeds are the blocks of the file that are the cluster's, by their names: policy, limits.user,
	// limits.installation, limits.on_limit, git, cors, llm.
	Seeds []string `hcl:"-"`
}

// HTTPConfig configures the API's listener.
type HTTPConfig struct {
	Address string `hcl:"address"`
	// CertFile and KeyFile enable HTTPS. Both are set or neither.
	CertFile string `hcl:"tls.cert_file"`
	KeyFile  string `hcl:"tls.key_file"`
	// DrainDelay is how long a stopping node serves on while it is unready. DrainTimeout is passed
	// to httpapi.Config.
	DrainDelay   time.Duration `hcl:"drain_delay"`
	DrainTimeout time.Duration `hcl:"drain_timeout"`
}

// drainDelay is the default of http { drain_delay }: HAProxy's checks, a second apart, and some room.
const drainDelay = 5 * time.Second

// PeerConfig configures the peer port.
type PeerConfig struct {
	Address   string `hcl:"address"`
	Advertise string `hcl:"advertise"`
	CAFile    string `hcl:"ca_file"`
	CertFile  string `hcl:"cert_file"`
	KeyFile   string `hcl:"key_file"`
	// CAKeyFile is the CA's key, for a node that renews its certificate itself; "" for none.
	CAKeyFile string `hcl:"ca_key_file"`
	// PKIMount and PKIRole are those of Vault's PKI, for a node that renews by it; "" for none.
	PKIMount string `hcl:"vault_pki.mount"`
	PKIRole  string `hcl:"vault_pki.role"`
	// CertificateLifetime is how long a renewed certificate is good for.
	CertificateLifetime time.Duration `hcl:"certificate_lifetime"`
}

// renews reports whether the node renews its certificate itself.
func (c *PeerConfig) renews() bool { return c.CAKeyFile != "" || c.PKIRole != "" }

// RaftConfig tunes Raft. A zero field means package cluster's default.
type RaftConfig struct {
	// LogStore is without effect. Older programs choose one of two log stores by it.
	LogStore           string        `hcl:"log_store"`
	HeartbeatTimeout   time.Duration `hcl:"heartbeat_timeout"`
	ElectionTimeout    time.Duration `hcl:"election_timeout"`
	LeaderLeaseTimeout time.Duration `hcl:"leader_lease_timeout"`
	SnapshotInterval   time.Duration `hcl:"snapshot_interval"`
	SnapshotThreshold  uint64        `hcl:"snapshot_threshold"`
	TrailingLogs       uint64        `hcl:"trailing_logs"`
	TrailingBytes      int64         `hcl:"trailing_bytes"`
	ProposeTimeout     time.Duration `hcl:"propose_timeout"`
	ReadTimeout        time.Duration `hcl:"read_timeout"`
	// DeadAfter and Voters are passed to cluster.Config.
	DeadAfter time.Duration `hcl:"dead_after"`
	Voters    int           `hcl:"voters"`
}

// NomadConfig is the Nomad cluster that runs the sandboxes.
type NomadConfig struct {
	Address       string   `hcl:"address"`
	Namespace     string   `hcl:"namespace"`
	Region        string   `hcl:"region"`
	Datacenters   []string `hcl:"datacenters"`
	TokenFile     string   `hcl:"token_file"`
	CAFile        string   `hcl:"ca_file"`
	CertFile      string   `hcl:"cert_file"`
	KeyFile       string   `hcl:"key_file"`
	NodePool      string   `hcl:"node_pool"`
	VolumePlugin  string   `hcl:"volume_plugin"`
	HostNetwork   string   `hcl:"host_network"`
	DockerNetwork string   `hcl:"docker_network"`
	VaultRole     string   `hcl:"vault_role"`
	// Variable is the path of this installation's mark; see nomad.Config.
	Variable  string        `hcl:"variable"`
	LostAfter time.Duration `hcl:"lost_after"`
}

// VaultConfig is the Vault that stores secret values.
type VaultConfig struct {
	Address      string `hcl:"address"`
	Mount        string `hcl:"mount"`
	Prefix       string `hcl:"prefix"`
	Namespace    string `hcl:"namespace"`
	AuthMount    string `hcl:"auth_mount"`
	RoleID       string `hcl:"role_id"`
	RoleIDFile   string `hcl:"role_id_file"`
	SecretIDFile string `hcl:"secret_id_file"`
	CAFile       string `hcl:"ca_file"`
	// UnreferencedGrace is the age from which an unreferenced version is deleted.
	// SecretRetention is how long it can be undeleted before it is destroyed. CollectInterval
	// is the pause between two collections.
	UnreferencedGrace time.Duration `hcl:"unreferenced_grace"`
	SecretRetention   time.Duration `hcl:"secret_retention"`
	CollectInterval   time.Duration `hcl:"collect_interval"`
}

// SandboxesConfig bounds the lifecycle of sandboxes.
type SandboxesConfig struct {
	// These are passed to scheduler.Config: the deadlines of STARTING and of a pause, the time
	// for a graceful pause of conversations before it, and how long a sandbox may wait for a
	// client with capacity.
	StartTimeout   time.Duration `hcl:"start_timeout"`
	StopTimeout    time.Duration `hcl:"stop_timeout"`
	PauseGrace     time.Duration `hcl:"pause_grace"`
	PlacementGrace time.Duration `hcl:"placement_grace"`
	// OrphanRetention and RemovalsPerHour are passed to scheduler.Config.
	OrphanRetention time.Duration `hcl:"orphan_retention"`
	RemovalsPerHour int           `hcl:"removals_per_hour"`
	// URL is how clients reach a sandbox's port; see httpapi.Config.SandboxURL.
	URL string `hcl:"url"`
	// Domain, PublicURL, Wake and MaxStale configure the sandbox proxy; see proxy.Config.
	Domain    string        `hcl:"domain"`
	PublicURL string        `hcl:"public_url"`
	Wake      bool          `hcl:"wake"`
	MaxStale  time.Duration `hcl:"max_stale"`
	// APIURLs are the nodes as sandboxes reach them, in the order to try them; none means that
	// sandboxes don't.
	APIURLs []string `hcl:"api_urls"`
}

// LimitsConfig bounds the requests of one client and the resources of sandboxes.
type LimitsConfig struct {
	// BodySize and SnapshotSize are in bytes. SnapshotSize bounds a file to restore.
	BodySize     int64 `hcl:"body_size"`
	SnapshotSize int64 `hcl:"snapshot_size"`
	// RatePerSecond is the request rate of one client address; 0 means no limit.
	RatePerSecond float64 `hcl:"rate_per_second"`
	// Connections is the number of open connections; 0 means package httpapi's default.
	// ConnectionsPerAddress is that of one client address; 0 means no limit.
	Connections           int `hcl:"connections"`
	ConnectionsPerAddress int `hcl:"connections_per_address"`
	// TrustedProxies are the proxies whose X-Forwarded-For is trusted.
	TrustedProxies []string `hcl:"trusted_proxies"`
	// User, Installation and OnLimit are passed to fsm.Installation.
	User         fsm.Limits  `hcl:"user"`
	Installation fsm.Limits  `hcl:"installation"`
	OnLimit      fsm.OnLimit `hcl:"on_limit"`
}

// GitConfig configures how provider tokens are verified.
type GitConfig struct {
	VerifyTokens bool     `hcl:"verify_tokens"`
	AllowedHosts []string `hcl:"allowed_hosts"`
}

// CORSConfig lists the web origins that may call the API.
type CORSConfig struct {
	Origins []string `hcl:"origins"`
}

// BackupConfig configures the leader's backups; none if Dir is "".
type BackupConfig struct {
	Dir      string        `hcl:"dir"`
	Interval time.Duration `hcl:"interval"`
	Retain   int           `hcl:"retain"`
}

// LogConfig configures logging to stderr.
type LogConfig struct {
	Level  string `hcl:"level"`
	Format string `hcl:"format"`
}

// leastGrace is twice the time that a command may take: a secret is written before the command
// that refers to it.
const leastGrace = 2 * time.Minute

// defaultConfig returns the configuration of a file with only the required members. Package
// cluster fills in the zero fields of Raft.
func defaultConfig() Config {
	api, jobs, sched := httpapi.DefaultConfig(), nomad.DefaultConfig(), scheduler.DefaultConfig()
	user, all := defaultLimits()
	return Config{
		Peer:  PeerConfig{CertificateLifetime: peernet.DefaultNodeLifetime},
		HTTP:  HTTPConfig{DrainDelay: drainDelay, DrainTimeout: api.DrainTimeout},
		Raft:  RaftConfig{DeadAfter: cluster.DefaultConfig().DeadAfter},
		Nomad: NomadConfig{VolumePlugin: jobs.VolumePlugin, LostAfter: jobs.LostAfter},
		Vault: VaultConfig{Mount: "secret", Prefix: "bivouac", AuthMount: "approle",
			UnreferencedGrace: secrets.DefaultGrace, SecretRetention: secrets.DefaultRetention,
			CollectInterval: sched.CollectInterval},
		Sandboxes: SandboxesConfig{StartTimeout: sched.StartTimeout, StopTimeout: sched.StopTimeout,
			PauseGrace:     sched.PauseGrace,
			PlacementGrace: sched.PlacementGrace, OrphanRetention: sched.OrphanRetention, URL: api.SandboxURL,
			Wake: api.Proxy.Wake, MaxStale: api.Proxy.MaxStale},
		Limits: LimitsConfig{BodySize: api.MaxBodyBytes, SnapshotSize: api.Operator.Snapshots.MaxUpload,
			RatePerSecond: defaultRate, ConnectionsPerAddress: api.MaxConnectionsPerAddress,
			User: user, Installation: all, OnLimit: fsm.OnLimitRefuse},
		Git: GitConfig{VerifyTokens: api.Git.VerifyTokens}, LLM: LLMConfig{Gateway: true},
		Log: LogConfig{Level: "info", Format: "text"},
	}
}

// maxAPIURLs bounds sandboxes { api_urls }: each is tried in turn.
const maxAPIURLs = 16

// defaultRate is the default of limits { rate_per_second }. A page with hundreds of parts loads
// without a delay.
const defaultRate = 500

// defaultLimits are the limits of a cluster whose first leader's file says nothing else: wide enough
// for a team, and an end to a program that starts sandboxes in a loop.
func defaultLimits() (user, all fsm.Limits) {
	return fsm.Limits{Running: 20, Total: 200, StartsPerMinute: 60}, fsm.Limits{Running: 1000, Total: 10_000}
}

// loadConfig reads a file. Its error is a usageError that lists every mistake. Relative paths
// in the file are relative to the file's folder.
func loadConfig(path string) (Config, error) {
	body, err := parseHCLFile(path)
	if err != nil {
		return Config{}, err
	}
	c := defaultConfig()
	if err := diagsError(c.decode(body)); err != nil {
		return Config{}, err
	}
	c.resolvePaths(filepath.Dir(path))
	return c, nil
}

// resolvePaths makes the paths absolute, relative to the folder of the configuration file. They
// do not depend on the working directory.
func (c *Config) resolvePaths(base string) {
	for _, p := range []*string{
		&c.DataDir, &c.Backup.Dir, &c.HTTP.CertFile, &c.HTTP.KeyFile,
		&c.Peer.CAFile, &c.Peer.CertFile, &c.Peer.KeyFile, &c.Peer.CAKeyFile,
		&c.Nomad.TokenFile, &c.Nomad.CAFile, &c.Nomad.CertFile, &c.Nomad.KeyFile,
		&c.Vault.RoleIDFile, &c.Vault.SecretIDFile, &c.Vault.CAFile, &c.UI.Directory,
	} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(base, *p)
		}
	}
}

func (c *Config) decode(body hcl.Body) hcl.Diagnostics {
	diags := decodeBody(body, []attr{
		{name: "node_name", required: true, set: setString(&c.NodeName, isNodeName)},
		{name: "data_dir", required: true, set: setString(&c.DataDir, notEmpty)},
		{name: "bootstrap_expect", set: setInt(&c.BootstrapExpect, 0, 9)},
		{name: "retry_join", set: setStrings(&c.RetryJoin, isPeerAddress)},
	}, append([]nested{
		{name: "http", required: true, decode: c.HTTP.decode},
		{name: "peer", required: true, decode: c.Peer.decode},
		{name: "raft", decode: c.Raft.decode},
		{name: "nomad", required: true, decode: c.Nomad.decode},
		{name: "vault", required: true, decode: c.Vault.decode},
		{name: "sandboxes", decode: c.Sandboxes.decode},
		{name: "limits", decode: func(b *hcl.Block) hcl.Diagnostics { return c.Limits.decode(b, c) }},
		{name: "backup", decode: c.Backup.decode},
		{name: "workspaces", decode: c.Workspaces.decode},
		{name: "ui", decode: c.UI.decode},
		{name: "log", decode: c.Log.decode},
		{name: "metrics", decode: func(b *hcl.Block) hcl.Diagnostics {
			return decodeBody(b.Body, []attr{{name: "address", required: true, set: setString(&c.Metrics, isListenAddress)}},
				nil)
		}},
	}, c.clusterBlocks()...))
	if c.Nomad.Variable == "" {
		c.Nomad.Variable = "bivouac/" + strings.Trim(c.Vault.Prefix, "/")
		if nomad.CheckVariable(c.Nomad.Variable) != nil {
			diags = append(diags, problem(body.MissingItemRange(),
				"nomad: variable is required, since vault's prefix %q can't be part of a Nomad variable's path", c.Vault.Prefix))
		}
	}
	if c.BootstrapExpect != 1 && len(c.RetryJoin) == 0 {
		diags = append(diags,
			problem(body.MissingItemRange(),
				"retry_join is required unless bootstrap_expect is 1: the node could not find the others"))
	}
	return diags
}

func (c *HTTPConfig) decode(b *hcl.Block) hcl.Diagnostics {
	return decodeBody(b.Body, []attr{
		{name: "address", required: true, set: setString(&c.Address, isListenAddress)},
		{name: "drain_delay", set: setDuration(&c.DrainDelay, 0, 5*time.Minute)},
		{name: "drain_timeout", set: setDuration(&c.DrainTimeout, time.Second, time.Hour)},
	}, []nested{
		{name: "tls", decode: func(b *hcl.Block) hcl.Diagnostics {
			return decodeBody(b.Body, []attr{
				{name: "cert_file", required: true, set: setString(&c.CertFile, notEmpty)},
				{name: "key_file", required: true, set: setString(&c.KeyFile, notEmpty)},
			}, nil)
		}},
	})
}

func (c *PeerConfig) decode(b *hcl.Block) hcl.Diagnostics {
	diags := decodeBody(b.Body, []attr{
		{name: "address", required: true, set: setString(&c.Address, isListenAddress)},
		{name: "advertise", set: setString(&c.Advertise, isPeerAddress)},
		{name: "ca_file", required: true, set: setString(&c.CAFile, notEmpty)},
		{name: "cert_file", required: true, set: setString(&c.CertFile, notEmpty)},
		{name: "key_file", required: true, set: setString(&c.KeyFile, notEmpty)},
		{name: "ca_key_file", set: setString(&c.CAKeyFile, notEmpty)},
		{name: "certificate_lifetime", set: setDuration(&c.CertificateLifetime, 10*time.Minute, 365*day)},
	}, []nested{
		{name: "vault_pki", decode: func(b *hcl.Block) hcl.Diagnostics {
			return decodeBody(b.Body, []attr{
				{name: "mount", required: true, set: setString(&c.PKIMount, isVaultPath)},
				{name: "role", required: true, set: setString(&c.PKIRole, isVaultPath)},
			}, nil)
		}},
	})
	if c.CAKeyFile != "" && c.PKIRole != "" {
		diags = append(diags, problem(b.DefRange, "peer: ca_key_file and vault_pki are two ways to the same: choose one"))
	}
	if c.renews() && c.CertFile == c.KeyFile {
		diags = append(diags,
			problem(b.DefRange, "peer: cert_file and key_file must be two files where the node renews them"))
	}
	if c.Advertise == "" && c.Address != "" && isPeerAddress(c.Address) != nil {
		diags = append(diags, problem(b.DefRange, "peer: advertise is required, since others can't reach %q", c.Address))
	}
	return diags
}

func (c *RaftConfig) decode(b *hcl.Block) hcl.Diagnostics {
	const low, high = 10 * time.Millisecond, time.Minute
	diags := decodeBody(b.Body, []attr{
		{name: "log_store", set: setString(&c.LogStore, oneOf("boltdb", "wal"))},
		{name: "heartbeat_timeout", set: setDuration(&c.HeartbeatTimeout, low, high)},
		{name: "election_timeout", set: setDuration(&c.ElectionTimeout, low, high)},
		{name: "leader_lease_timeout", set: setDuration(&c.LeaderLeaseTimeout, low, high)},
		{name: "snapshot_interval", set: setDuration(&c.SnapshotInterval, time.Second, 24*time.Hour)},
		{name: "snapshot_threshold", set: setInt(&c.SnapshotThreshold, 1, math.MaxInt32)},
		{name: "trailing_logs", set: setInt(&c.TrailingLogs, 1, math.MaxInt32)},
		{name: "trailing_bytes", set: setInt(&c.TrailingBytes, 16<<20, 1<<40)},
		{name: "propose_timeout", set: setDuration(&c.ProposeTimeout, 100*time.Millisecond, 30*time.Second)},
		{name: "read_timeout", set: setDuration(&c.ReadTimeout, 100*time.Millisecond, cluster.MaxReadTimeout)},
		{name: "dead_after", set: setDuration(&c.DeadAfter, 0, 30*24*time.Hour)},
		{name: "voters", set: setInt(&c.Voters, 1, 9)},
	}, nil)
	heartbeat, election, lease := c.timers()
	if election < heartbeat {
		diags = append(diags,
			problem(b.DefRange, "raft: election_timeout (%s) must not be below heartbeat_timeout (%s)", election, heartbeat))
	}
	if lease > heartbeat {
		diags = append(diags,
			problem(b.DefRange, "raft: leader_lease_timeout (%s) must not be above heartbeat_timeout (%s)", lease, heartbeat))
	}
	return diags
}

func (c *NomadConfig) decode(b *hcl.Block) hcl.Diagnostics {
	diags := decodeBody(b.Body, []attr{
		{name: "address", required: true, set: setString(&c.Address, isHTTPAddress)},
		{name: "namespace", set: setString(&c.Namespace, notEmpty)},
		{name: "region", set: setString(&c.Region, notEmpty)},
		{name: "datacenters", set: setStrings(&c.Datacenters, notEmpty)},
		{name: "token_file", set: setString(&c.TokenFile, notEmpty)},
		{name: "ca_file", set: setString(&c.CAFile, notEmpty)},
		{name: "cert_file", set: setString(&c.CertFile, notEmpty)},
		{name: "key_file", set: setString(&c.KeyFile, notEmpty)},
		{name: "node_pool", set: setString(&c.NodePool, notEmpty)},
		{name: "host_network", set: setString(&c.HostNetwork, notEmpty)},
		{name: "docker_network", set: setString(&c.DockerNetwork, nomad.CheckDockerNetwork)},
		{name: "volume_plugin", set: setString(&c.VolumePlugin, notEmpty)},
		{name: "vault_role", set: setString(&c.VaultRole, notEmpty)},
		{name: "variable", set: setString(&c.Variable, nomad.CheckVariable)},
		{name: "lost_after", set: setDuration(&c.LostAfter, time.Minute, 30*24*time.Hour)},
	}, nil)
	if (c.CertFile == "") != (c.KeyFile == "") {
		diags = append(diags, problem(b.DefRange, "nomad: cert_file and key_file go together"))
	}
	return diags
}

func (c *VaultConfig) decode(b *hcl.Block) hcl.Diagnostics {
	diags := decodeBody(b.Body, []attr{
		{name: "address", required: true, set: setString(&c.Address, isHTTPAddress)},
		{name: "mount", set: setString(&c.Mount, notEmpty)},
		{name: "prefix", set: setString(&c.Prefix, notEmpty)},
		{name: "namespace", set: setString(&c.Namespace, notEmpty)},
		{name: "auth_mount", set: setString(&c.AuthMount, notEmpty)},
		{name: "role_id", set: setString(&c.RoleID, notEmpty)},
		{name: "role_id_file", set: setString(&c.RoleIDFile, notEmpty)},
		{name: "secret_id_file", required: true, set: setString(&c.SecretIDFile, notEmpty)},
		{name: "ca_file", set: setString(&c.CAFile, notEmpty)},
		{name: "unreferenced_grace", set: setDuration(&c.UnreferencedGrace, leastGrace, 24*time.Hour)},
		{name: "secret_retention", set: setDuration(&c.SecretRetention, time.Hour, 10*365*24*time.Hour)},
		{name: "collect_interval", set: setDuration(&c.CollectInterval, time.Second, 24*time.Hour)},
	}, nil)
	if (c.RoleID == "") == (c.RoleIDFile == "") {
		diags = append(diags, problem(b.DefRange, "vault: exactly one of role_id and role_id_file is required"))
	}
	return diags
}

func (c *SandboxesConfig) decode(b *hcl.Block) hcl.Diagnostics {
	diags := decodeBody(b.Body, []attr{
		{name: "start_timeout", set: setDuration(&c.StartTimeout, time.Second, time.Hour)},
		{name: "stop_timeout", set: setDuration(&c.StopTimeout, time.Second, time.Hour)},
		{name: "pause_grace", set: setDuration(&c.PauseGrace, time.Second, time.Hour)},
		{name: "placement_grace", set: setDuration(&c.PlacementGrace, time.Second, time.Hour)},
		{name: "orphan_retention", set: setDuration(&c.OrphanRetention, time.Minute, 100*365*24*time.Hour)},
		{name: "removals_per_hour", set: setInt(&c.RemovalsPerHour, 0, 1<<20)},
		{name: "url", set: setString(&c.URL, isSandboxURL)},
		{name: "domain", set: setString(&c.Domain, isDomain)},
		{name: "public_url", set: setString(&c.PublicURL, isHTTPAddress)},
		{name: "wake", set: setBool(&c.Wake)},
		{name: "max_stale", set: setDuration(&c.MaxStale, 10*time.Second, 24*time.Hour)},
		{name: "api_urls", set: setStrings(&c.APIURLs, isHTTPAddress)},
	}, nil)
	if len(c.APIURLs) > maxAPIURLs {
		diags = append(diags,
			problem(b.DefRange, "sandboxes: api_urls has %d members, at most %d are tried", len(c.APIURLs), maxAPIURLs))
	}
	if c.PauseGrace >= c.StopTimeout {
		diags = append(diags,
			problem(b.DefRange, "sandboxes: pause_grace (%s) must be shorter than stop_timeout (%s)", c.PauseGrace,
				c.StopTimeout))
	}
	if c.Domain != "" && c.URL != httpapi.SandboxURLProxy {
		diags = append(diags, problem(b.DefRange, "sandboxes: domain needs url = %q", httpapi.SandboxURLProxy))
	}
	if u, err := url.Parse(c.PublicURL); err == nil && c.Domain != "" &&
		strings.HasSuffix(strings.ToLower(u.Hostname()), "."+c.Domain) {
		diags = append(diags,
			problem(b.DefRange, "sandboxes: public_url must not be below domain: every name there is a sandbox's"))
	}
	return diags
}

func (c *LimitsConfig) decode(b *hcl.Block, in *Config) hcl.Diagnostics {
	attrs, blocks := c.clusterLimits(in)
	return decodeBody(b.Body, append([]attr{
		{name: "body_size", set: setInt(&c.BodySize, 1<<10, 64<<20)},
		{name: "snapshot_size", set: setInt(&c.SnapshotSize, 1<<20, 1<<40)},
		{name: "rate_per_second", set: setFloat(&c.RatePerSecond, 0, 1e6)},
		{name: "connections", set: setInt(&c.Connections, 64, 1<<20)},
		{name: "connections_per_address", set: setInt(&c.ConnectionsPerAddress, 0, 1<<20)},
		{name: "trusted_proxies", set: setStrings(&c.TrustedProxies, isPrefix)},
	}, attrs...), blocks)
}

func (c *GitConfig) decode(b *hcl.Block) hcl.Diagnostics {
	return decodeBody(b.Body, []attr{
		{name: "verify_tokens", set: setBool(&c.VerifyTokens)},
		{name: "allowed_hosts", set: setStrings(&c.AllowedHosts, fsm.CheckHost)},
	}, nil)
}

func (c *CORSConfig) decode(b *hcl.Block) hcl.Diagnostics {
	return decodeBody(b.Body, []attr{
		{name: "origins", set: setStrings(&c.Origins, fsm.CheckOrigin)},
	}, nil)
}

func (c *BackupConfig) decode(b *hcl.Block) hcl.Diagnostics {
	c.Interval, c.Retain = time.Hour, 24
	return decodeBody(b.Body, []attr{
		{name: "dir", required: true, set: setString(&c.Dir, notEmpty)},
		{name: "interval", set: setDuration(&c.Interval, 10*time.Second, 30*24*time.Hour)},
		{name: "retain", set: setInt(&c.Retain, 1, 10000)},
	}, nil)
}

func (c *LogConfig) decode(b *hcl.Block) hcl.Diagnostics {
	return decodeBody(b.Body, []attr{
		{name: "level", set: setString(&c.Level, oneOf("debug", "info", "warn", "error"))},
		{name: "format", set: setString(&c.Format, oneOf("text", "json"))},
	}, nil)
}

// timers returns the three Raft timers with the defaults filled in.
func (c *RaftConfig) timers() (heartbeat, election, lease time.Duration) {
	d := cluster.DefaultConfig()
	return cmp.Or(c.HeartbeatTimeout, d.HeartbeatTimeout),
		cmp.Or(c.ElectionTimeout, d.ElectionTimeout),
		cmp.Or(c.LeaderLeaseTimeout, d.LeaderLeaseTimeout)
}
