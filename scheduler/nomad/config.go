package nomad

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config says which Nomad to use and how to make jobs. Start from DefaultConfig.
type Config struct {
	// Address is the URL of Nomad's HTTP API.
	Address string
	// Region and Namespace may be empty, for Nomad's defaults.
	Region    string
	Namespace string
	// Token is the ACL token, empty where ACLs are off. It needs the capabilities submit-job,
	// read-job, list-jobs, read-logs, alloc-exec and host-volume-create, -read, -delete in the
	// namespace, read and write for Variable, and node:read. TokenFile holds it instead, and is read again
	// when it changes, as the files of TLS are.
	Token     string
	TokenFile string
	TLS       TLSConfig

	// Datacenters and NodePool limit where sandboxes run; empty means any datacenter and the
	// default pool.
	Datacenters []string
	NodePool    string
	// HostNetwork is the host_network of the clients on whose address the sandboxes' ports are;
	// empty means the client's main address. Every client that runs sandboxes needs it.
	HostNetwork string
	// DockerNetwork is the docker network of containers that have their own network
	// (deploy/nomad/sandbox-network.sh); empty means docker's bridge. Every client that runs
	// sandboxes needs it.
	DockerNetwork string
	// VolumePlugin is the plugin that makes the workspace volumes.
	VolumePlugin string
	// MountVolumes makes docker jobs mount their volume even where the client's docker driver
	// could bind its directory. Nomad then enforces the volume's single writer itself. Every
	// first start takes five to ten seconds longer, because clients announce new volumes only
	// then.
	MountVolumes bool
	// CarryImage is the docker image whose /sandbox-agent copies and moves workspaces, CarryCommand the
	// program that does so for raw_exec. Where they are "" it is the sandbox's own, if that is named
	// sandbox-agent. With raw_exec they need the capability alloc-node-exec.
	CarryImage, CarryCommand string
	// KillTimeout is how long a task may take to stop before it is killed.
	KillTimeout time.Duration
	// LostAfter is how long a client may be away before Nomad marks its allocations as lost.
	// Until then no second copy starts.
	LostAfter time.Duration
	// Env is added to every sandbox's environment and overrides its spec's. It must not contain
	// secrets.
	Env map[string]string

	// VaultMount is the KV v2 mount of sandbox keys, which are at
	// "<mount>/data/<namespace>/sandbox-<id>/session" in Vault's API. With an empty mount tasks
	// get no key from Vault; only tests of Nomad alone use that.
	VaultMount string
	// VaultRole overrides the role of Nomad's Vault configuration.
	VaultRole string

	// Variable is the path of the Nomad variable that holds this installation's mark.
	// Installations that share a Nomad need one each.
	Variable string

	// CallTimeout bounds one call of Nomad's API. VolumeTimeout is how long a new volume may take
	// to be ready. RemoveWait is how long Remove waits for a volume's release before it leaves
	// that to the next try.
	CallTimeout   time.Duration
	VolumeTimeout time.Duration
	RemoveWait    time.Duration

	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// TLSConfig configures how Nomad's HTTPS is verified and the client certificate. Empty fields
// mean the system's defaults.
type TLSConfig struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

// DefaultConfig returns the values of an ordinary installation, without a Vault mount.
func DefaultConfig() Config {
	return Config{
		Address:       "http://127.0.0.1:4646",
		VolumePlugin:  "mkdir",
		Variable:      "bivouac/bivouac",
		KillTimeout:   10 * time.Second,
		LostAfter:     6 * time.Hour,
		CallTimeout:   10 * time.Second,
		VolumeTimeout: 20 * time.Second,
		RemoveWait:    2 * time.Second,
	}
}

// Validate returns an error that names the first field that is out of bounds.
func (c Config) Validate() error {
	u, err := url.Parse(c.Address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("nomad: address must be an http or https URL, got %q", c.Address)
	}
	if c.VolumePlugin == "" {
		return errors.New("nomad: volume plugin must be set")
	}
	if err := CheckVariable(c.Variable); err != nil {
		return fmt.Errorf("nomad: variable %w", err)
	}
	if c.DockerNetwork != "" {
		if err := CheckDockerNetwork(c.DockerNetwork); err != nil {
			return fmt.Errorf("nomad: docker network %w", err)
		}
	}
	if c.Token != "" && c.TokenFile != "" {
		return errors.New("nomad: a token and a token file exclude each other")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return errors.New("nomad: a TLS certificate and its key go together")
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"kill timeout", c.KillTimeout},
		{"lost after", c.LostAfter},
		{"call timeout", c.CallTimeout},
		{"volume timeout", c.VolumeTimeout},
		{"remove wait", c.RemoveWait},
	} {
		if d.value <= 0 {
			return fmt.Errorf("nomad: %s must be positive, got %s", d.name, d.value)
		}
	}
	return nil
}

// CheckDockerNetwork returns an error that says what a container's own network can't be called. What
// docker takes for another container's network, or for the host's, is no name.
func CheckDockerNetwork(name string) error {
	switch {
	case slices.Contains([]string{"host", "none", "default"}, name):
		return fmt.Errorf("must be a network made for the sandboxes, not docker's own %q", name)
	case !regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`).MatchString(name):
		return fmt.Errorf("must be letters, digits, '-', '_' and '.', at most 64, got %q", name)
	}
	return nil
}

// namespace is the namespace's name, as Vault paths have it.
func (c Config) namespace() string {
	if c.Namespace == "" {
		return "default"
	}
	return c.Namespace
}
