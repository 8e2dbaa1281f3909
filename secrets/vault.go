package secrets

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"
	"github.com/prometheus/client_golang/prometheus"
)

// VaultConfig says how to reach Vault. deploy/vault/bivouac.hcl is the policy that the AppRole
// needs.
type VaultConfig struct {
	// Address is the URL of the API, such as https://vault.example.org:8200.
	Address string
	// CAFile, if set, holds the CA certificates (PEM) that verify Vault, instead of the system's.
	// ServerName replaces the host name of Address when its certificate is verified.
	CAFile, ServerName string
	// Namespace is Vault's (Enterprise), "" for none.
	Namespace string

	// AuthMount is the mount of AppRole; "" is "approle".
	AuthMount string
	// RoleID or RoleIDFile names the role. SecretIDFile holds its secret id. The files are read at
	// every login, and a login follows when they change.
	RoleID, RoleIDFile, SecretIDFile string

	// Mount is the mount of KV version 2; "" is "secret". Prefix is Bivouac's folder in it; "" is
	// "bivouac". Two clusters that share a mount need different prefixes.
	Mount, Prefix string
	// NomadNamespace is the Nomad namespace of the sandboxes; "" is "default". Their keys are stored
	// where the policy of Nomad's workload identities lets their jobs read:
	// <mount>/<namespace>/sandbox-<id>/.
	NomadNamespace string

	// Timeout bounds one operation; 0 is 5 s. Grace is DefaultGrace when 0, Retention is
	// DefaultRetention.
	Timeout, Grace, Retention time.Duration

	// InUse returns the lowest version of the entry at a path that the state names, 0 for none. A write
	// that would push it out is refused (ErrFull). A nil function names none.
	InUse func(path string) int `json:"-"`

	// Replace writes SecretIDFile when the node renews its secret id. Without it the node does not.
	Replace func(path string, data []byte, mode os.FileMode) error `json:"-"`

	// renewAge, for tests, is the age at which a secret id is renewed; 0 is two thirds of its life.
	renewAge time.Duration

	// Logger logs logins; nil is silent. Registerer takes the metrics; nil registers none.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Vault is a Store in Vault's KV version 2 secrets engine. It works while Run runs. Operations wait
// for the first login. When the last login failed they return ErrUnavailable at once.
type Vault struct {
	cfg      VaultConfig
	http     *http.Client
	sessions sessions
	cache    *cache
	metrics  *metrics
	log      *slog.Logger
	// secretID is the session's, nil while it is not known. renewals counts its renewals.
	secretID atomic.Pointer[secretID]
	renewals *prometheus.CounterVec
	// sealed: Vault was sealed at a probe, and has not served since.
	sealed atomic.Bool
}

// NewVault checks the configuration and reads the CA file. It does not connect.
func NewVault(cfg VaultConfig) (*Vault, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring vault: %w", err)
	}
	client, err := newHTTPClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("configuring vault: %w", err)
	}
	v := &Vault{cfg: cfg, http: client, log: cfg.Logger}
	v.sessions.changed = make(chan struct{})
	if v.cache, err = newCache(); err != nil {
		return nil, fmt.Errorf("configuring vault: %w", err)
	}
	v.metrics = newMetrics(cfg.Registerer)
	v.renewals = v.registerSecretID(cfg.Registerer)
	if _, err := v.newClient(""); err != nil {
		return nil, fmt.Errorf("configuring vault: %w", err)
	}
	return v, nil
}

func (c *VaultConfig) setDefaults() {
	or := func(s *string, def string) {
		*s = cmp.Or(*s, def)
	}
	or(&c.AuthMount, "approle")
	or(&c.Mount, "secret")
	or(&c.Prefix, "bivouac")
	or(&c.NomadNamespace, "default")
	for _, s := range []*string{&c.AuthMount, &c.Mount, &c.Prefix} {
		*s = strings.Trim(*s, "/")
	}
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *VaultConfig) validate() error {
	var errs []error
	if c.Address == "" {
		errs = append(errs, errors.New("no address"))
	}
	if (c.RoleID == "") == (c.RoleIDFile == "") {
		errs = append(errs, errors.New("exactly one of role id and role id file is needed"))
	}
	if c.SecretIDFile == "" {
		errs = append(errs, errors.New("no secret id file"))
	}
	if first, _, _ := strings.Cut(c.Prefix, "/"); first == c.NomadNamespace {
		errs = append(errs,
			fmt.Errorf("prefix %q lies in the folder of the Nomad namespace %q, whose jobs may read it", c.Prefix,
				c.NomadNamespace))
	}
	if c.Timeout < 0 || c.Grace < 0 || c.Retention < 0 {
		errs = append(errs, errors.New("timeout, grace and retention can't be negative"))
	}
	return errors.Join(errs...)
}

func newHTTPClient(cfg VaultConfig) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 32
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", cfg.CAFile)
		}
	}
	return &http.Client{
		Transport: transport,
		// The api package follows Vault's redirects itself.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// newClient returns a client with that token and nothing from the environment: VAULT_TOKEN and the
// like belong to a person, not to the node.
func (v *Vault) newClient(token string) (*api.Client, error) {
	client, err := api.NewClient(&api.Config{
		Address:    v.cfg.Address,
		HttpClient: v.http,
		// Bounds the calls without a context: the renewal of the token.
		Timeout: v.cfg.Timeout,
		// Callers decide how long to wait for a sealed Vault.
		MaxRetries: 0,
	})
	if err != nil {
		return nil, err
	}
	client.SetToken(token)
	client.ClearNamespace()
	if v.cfg.Namespace != "" {
		client.SetNamespace(v.cfg.Namespace)
	}
	return client, nil
}

// do runs one operation with a session, within the time limit. It runs it again once when Vault no
// longer knows the token.
func (v *Vault) do(ctx context.Context, operation string, fn func(context.Context, *session) error) (err error) {
	begun := time.Now()
	defer func() { v.metrics.observe(operation, begun, err) }()
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	for try := 0; ; try++ {
		s, err := v.session(ctx)
		if err != nil {
			return err
		}
		err = fn(ctx, s)
		if !isDenied(err) || try > 0 || s.alive(ctx) {
			return explain(err)
		}
		v.sessions.drop(s)
	}
}

// sandboxFolder begins the name of a sandbox's folder in Vault, which is the Nomad job's id.
const sandboxFolder = "sandbox-"

// physical returns the path in the mount of the entry at a logical path.
func (v *Vault) physical(path string) string {
	if rest, ok := strings.CutPrefix(path, "sandboxes/"); ok {
		return v.cfg.NomadNamespace + "/" + sandboxFolder + rest
	}
	return v.cfg.Prefix + "/" + path
}
