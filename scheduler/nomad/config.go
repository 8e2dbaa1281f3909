package nomad

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config says which Nomad to use and how jobs are made. Start from
// DefaultConfig.
type Config struct {
	// Address is the URL of Nomad's HTTP API.
	Address string
	// Region and Namespace may be empty: Nomad's defaults.
	Region    string
	Namespace string
	// Token is the ACL token, empty where ACLs are off. It needs submit-job,
	// read-job, list-jobs, read-logs and host-volume-create, -read, -delete
	// capabilities in the namespace, read and write for Variable, and node:read.
	Token string
	TLS   TLSConfig

	// Datacenters and NodePool limit where sandboxes run; empty means any
	// datacenter and the default pool.
	Datacenters []string
	NodePool    string
	// VolumePlugin makes the workspace volumes.
	VolumePlugin string
	// MountVolumes makes docker jobs mount their volume even where the client's
	// docker driver could bind its directory. Nomad then enforces the volume's
	// single writer itself, and every first start takes five to ten seconds
	// longer, because clients announce new volumes no sooner.
	MountVolumes bool
	// KillTimeout is how long a task may take to stop before it is killed.
	KillTimeout time.Duration
	// LostAfter is how long a client may be away before Nomad calls its
	// sandboxes lost. Until then they are waited for; no second copy starts.
	LostAfter time.Duration
	// Env is added to every sandbox's environment, over what its spec says. No
	// secrets here.
	Env map[string]string

	// VaultMount is the KV v2 mount below which sandbox keys are,
	// "<mount>/data/<namespace>/sandbox-<id>/session" as Vault's API spells it.
	// Empty means that tasks get no key from Vault; only tests of Nomad alone
	// want that.
	VaultMount string
	// VaultRole overrides the role of Nomad's Vault configuration.
	VaultRole string

	// Variable is the path of the Nomad variable that holds this installation's
	// mark. Installations that share a Nomad need one each.
	Variable string

	// CallTimeout bounds one call of Nomad's API; VolumeTimeout how long a new
	// volume may take to be ready; RemoveWait how long Remove waits for a
	// volume to be released before it leaves that to the next try.
	CallTimeout   time.Duration
	VolumeTimeout time.Duration
	RemoveWait    time.Duration

	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// TLSConfig is how Nomad's HTTPS is verified and what we show it. Empty fields
// are left to the system's defaults.
type TLSConfig struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

// DefaultConfig gives the values of an ordinary installation, but for the
// Vault mount.
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

// Validate names the first field that is out of bounds.
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

// namespace is the namespace by its name, as Vault paths have it.
func (c Config) namespace() string {
	if c.Namespace == "" {
		return "default"
	}
	return c.Namespace
}
