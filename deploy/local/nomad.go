package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/deploy"
)

// NomadOptions configures StartNomad. Only Dir is required.
type NomadOptions struct {
	// Dir receives the data, the log and the configuration. The same Dir and Port give the same
	// Nomad again.
	Dir string
	// Port is the API's port on 127.0.0.1; 0 is a free one.
	Port int
	// Vault, if set, gives tasks their secrets by workload identity. StartNomad configures both.
	// Stop Nomad before it.
	Vault *Vault
	// Namespace is the sandboxes' namespace: Vault trusts only its tasks. It is created if it
	// is missing; "" is default.
	Namespace string
	// Drivers are those that the namespace's jobs may use; none means any. See
	// deploy/nomad/namespace.hcl.
	Drivers []string
	// NodePool is the client's; "" is default.
	NodePool string
	// Detach lets Nomad outlive this process.
	Detach bool
	// ACL turns access control on. Nomad.Token then has all permissions. With Join it is that Nomad's.
	ACL bool
	// Extra is HCL of a second configuration file, merged over the first.
	Extra string
	// Join makes it a client of that Nomad without a server: one more machine.
	Join *Nomad
	// Binary is the program; "" calls Tool.
	Binary string
	// Progress receives lines about slow steps; nil is silent.
	Progress io.Writer
}

// Nomad is one running agent at 127.0.0.1, server and client at once. Drivers: raw_exec always,
// docker if the user may use a Docker daemon; dynamic host volumes with the mkdir plugin. Its
// state is on disk, unlike in -dev mode.
type Nomad struct {
	Server
	// Token is the management token, "" without ACLs.
	Token string

	ports portRange
	rpc   string // the address for clients
	acl   bool   // not yet bootstrapped
	// namespace is the sandboxes' Nomad namespace.
	namespace string
}

// StartNomad starts a Nomad and returns when its client is ready for jobs. ctx bounds the start
// only: the caller calls Close. On an error nothing keeps running.
func StartNomad(ctx context.Context, o NomadOptions) (*Nomad, error) {
	common := serverOptions{"nomad", o.Dir, o.Binary, o.Port, o.Detach, o.Progress}
	s, ports, err := newServer(ctx, common, 3)
	if err != nil {
		return nil, err
	}
	dynamic, err := claimPortRange()
	if err != nil {
		return nil, err
	}
	s.cmd.inherit = dynamic.lock
	n := &Nomad{
		Server:    s,
		ports:     dynamic,
		rpc:       "127.0.0.1:" + strconv.Itoa(ports[1]),
		acl:       o.ACL,
		namespace: cmp.Or(o.Namespace, "default"),
	}
	if o.Join != nil {
		n.acl, n.Token = false, o.Join.Token
	}
	text, err := nomadConfig(n, ports, o)
	if err == nil {
		err = n.configure("nomad.hcl", text, "agent", "-config=")
	}
	if err == nil && o.Extra != "" {
		err = n.configure("extra.hcl", []byte(o.Extra), append(n.cmd.Args, "-config=")...)
	}
	if err != nil {
		dynamic.release()
		return nil, err
	}
	err = n.Start(ctx)
	if err == nil && o.Namespace != "" && o.Join == nil {
		err = n.applyNamespace(ctx, o)
	}
	if err == nil && o.Vault != nil && o.Join == nil {
		err = o.Vault.TrustNamespace(ctx, n.Address, o.Namespace)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// applyNamespace makes the sandboxes' namespace.
func (n *Nomad) applyNamespace(ctx context.Context, o NomadOptions) error {
	in := map[string]any{"Name": o.Namespace}
	if len(o.Drivers) > 0 {
		in["Capabilities"] = map[string]any{"EnabledTaskDrivers": o.Drivers}
	}
	return n.Do(ctx, http.MethodPost, "namespace/"+o.Namespace, in, nil)
}

// nomadConfig returns the agent's configuration file.
func nomadConfig(n *Nomad, ports []int, o NomadOptions) ([]byte, error) {
	text, err := deploy.Files.ReadFile("config/stack-nomad.hcl")
	if err != nil {
		return nil, err
	}
	filled := strings.NewReplacer(
		`"DATA_DIR"`, strconv.Quote(filepath.Join(n.Dir, "data")),
		"HTTP_PORT", strconv.Itoa(ports[0]), "RPC_PORT", strconv.Itoa(ports[1]), "SERF_PORT", strconv.Itoa(ports[2]),
		"NODE_POOL", cmp.Or(o.NodePool, "default"), "MIN_DYNAMIC_PORT", strconv.Itoa(n.ports.min), "MAX_DYNAMIC_PORT",
		strconv.Itoa(n.ports.max),
	).Replace(string(text))
	if o.Join != nil {
		filled = strings.NewReplacer(
			`name      = "local"`, `name      = "`+filepath.Base(n.Dir)+`"`, "enabled          = true\n  bootstrap_expect = 1",
			"enabled = false",
			"client {\n", "client {\n  servers = ["+strconv.Quote(o.Join.rpc)+"]\n",
		).Replace(filled)
	}
	if o.Vault != nil {
		filled += fmt.Sprintf(nomadVault, o.Vault.Address, nomadAuthPath+"/")
	}
	if o.ACL || n.Token != "" {
		// The clients remember for a second what a token may, so a changed policy counts at once.
		filled += "\nacl {\n  enabled    = true\n  token_ttl  = \"1s\"\n  policy_ttl = \"1s\"\n  role_ttl   = \"1s\"\n}\n"
	}
	return []byte(filled), nil
}

const nomadVault = `
vault {
  enabled               = true
  address               = %q
  jwt_auth_backend_path = %q
  default_identity {
    aud = ["vault.io"]
    ttl = "1h"
  }
}
`

// Start starts a stopped or killed Nomad with the same address and data. It finds its surviving
// tasks again.
func (n *Nomad) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		logged := size(n.Log)
		if err := n.start(); err != nil {
			return err
		}
		err := n.waitReady(ctx, logged)
		switch {
		case errors.Is(err, errNotRegistered):
			if err := n.Kill(); err != nil {
				return err
			}
		case err == nil || n.proc.Alive() || !n.logged(logged, "address already in use") || !pause(ctx, 100*time.Millisecond):
			return err
		}
		// A helper of the former agent, killed between fork and exec, can hold the ports for a
		// moment.
	}
}

// pause waits. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// logged reports whether the log contains text after the offset.
func (n *Nomad) logged(offset int64, text string) bool {
	f, err := os.Open(n.Log)
	if err != nil {
		return false
	}
	defer f.Close()
	raw, err := io.ReadAll(io.NewSectionReader(f, offset, 1<<20))
	return err == nil && bytes.Contains(raw, []byte(text))
}

// errNotRegistered means that the client tried to register before the server had its keyring. The
// client retries after 15 to 30 s; a restart of the agent takes 2 s.
var errNotRegistered = errors.New("the client was not registered")

// waitReady waits until there is a leader and the client is ready, with the docker driver
// healthy if Docker is reachable. The log of this start begins at the offset logged.
func (n *Nomad) waitReady(ctx context.Context, logged int64) error {
	docker := DockerReachable(ctx)
	var again bool
	err := until(ctx, n.proc, "a ready client", func(ctx context.Context) error {
		err := n.clientReady(ctx, docker)
		if err != nil && n.registrationFailed(ctx, logged) {
			again = true
			return nil
		}
		return err
	})
	if err == nil && again {
		return errNotRegistered
	}
	return err
}

// nomadSelf is the part of GET agent/self that this file reads.
type nomadSelf struct {
	Stats struct {
		Client struct {
			NodeID string `json:"node_id"`
		} `json:"client"`
	} `json:"stats"`
}

func (n *Nomad) clientReady(ctx context.Context, docker bool) error {
	var self nomadSelf
	if err := n.bootstrapACL(ctx); err != nil {
		return err
	}
	if err := n.Do(ctx, http.MethodGet, "agent/self", nil, &self); err != nil {
		return err
	}
	var node struct {
		Status                string
		SchedulingEligibility string
		Drivers               map[string]struct{ Detected, Healthy bool }
	}
	if err := n.Do(ctx, http.MethodGet, "node/"+self.Stats.Client.NodeID, nil, &node); err != nil {
		return err
	}
	switch {
	case node.Status != "ready" || node.SchedulingEligibility != "eligible":
		return fmt.Errorf("client is %q and %q", node.Status, node.SchedulingEligibility)
	case !node.Drivers["raw_exec"].Healthy:
		return errors.New("driver raw_exec is not healthy")
	case docker && !node.Drivers["docker"].Healthy:
		return errors.New("driver docker is not healthy")
	}
	return nil
}

// registrationFailed reports whether the client waits for its retry although the server could
// register it.
func (n *Nomad) registrationFailed(ctx context.Context, logged int64) bool {
	if !n.logged(logged, "client: error registering") {
		return false
	}
	var keys []struct{ State string }
	return n.Do(ctx, http.MethodGet, "operator/keyring/keys", nil, &keys) == nil && len(keys) > 0
}

func size(path string) int64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// Do sends a request. path is relative to /v1/, in is the body and out receives the response;
// both are JSON and may be nil. A response other than 2xx is a *StatusError.
func (n *Nomad) Do(ctx context.Context, method, path string, in, out any) error {
	return n.DoAs(ctx, n.Token, method, path, in, out)
}

// DoAs is Do with another token.
func (n *Nomad) DoAs(ctx context.Context, token, method, path string, in, out any) error {
	return n.call(ctx, "X-Nomad-Token", token, method, path, in, out)
}

// RunHCL registers an HCL job like `nomad job run -detach`.
func (n *Nomad) RunHCL(ctx context.Context, hcl string) error {
	var job json.RawMessage
	in := map[string]any{"JobHCL": hcl, "Canonicalize": true}
	if err := n.Do(ctx, http.MethodPost, "jobs/parse", in, &job); err != nil {
		return fmt.Errorf("parsing the job: %w", err)
	}
	return n.Do(ctx, http.MethodPost, "jobs", map[string]any{"Job": job}, nil)
}

// Stop stops the agent gracefully. Its tasks keep running, as with any Nomad client that
// restarts; Start finds them again.
func (n *Nomad) Stop() error { return n.stop(20 * time.Second) }

// NodeID returns the id of the agent's client.
func (n *Nomad) NodeID(ctx context.Context) (string, error) {
	var self nomadSelf
	err := n.Do(ctx, http.MethodGet, "agent/self", nil, &self)
	return self.Stats.Client.NodeID, err
}
