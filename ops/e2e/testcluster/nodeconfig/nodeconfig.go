// Package nodeconfig writes the configuration file of a node for drills and benchmarks.
package nodeconfig

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Config is the configuration of one node. Its addresses are host:port.
type Config struct {
	// Name is the member's name. TLS is the folder with its certificate.
	Name, Data, HTTP, Peer, TLS string
	Peers                       []string
	// Expect is the number of nodes that form a cluster, 0 for as many as there are peers.
	Expect int
	// Drain is the nodes' drain_delay; the default is none, since there is no balancer.
	Drain time.Duration
	// Earlier leaves out drain_delay: the node's program may be of a commit that refuses it.
	Earlier bool
	// Certificate is the path of the API's certificate without "-key.pem" and ".pem", "" for
	// plain HTTP.
	Certificate string
	// Nomad and Vault are URLs. The defaults do not respond.
	Nomad, Vault string
	// Role and SecretID are the node's role and the file of its secret id in Vault.
	Role, SecretID string
	// Raft, Peering, Backend and Secrets are HCL in the blocks raft, peer, nomad and vault. More is HCL at the
	// end. Without a block "limits" in it there are none: drills start thousands of sandboxes.
	Raft, Peering, Backend, Secrets, More string
	// APIURLs are the nodes as sandboxes reach them. More has no block "sandboxes" then.
	APIURLs []string
	// LogLevel is "" for the program's own.
	LogLevel string
}

// NoLimits is HCL of limits { user {} } and limits { installation {} }: no limit on sandboxes.
const NoLimits = "running_sandboxes = 0\ntotal_sandboxes = 0\nstarts_per_minute = 0\n"

// unlimited is the block "limits" of drills that test none.
const unlimited = "limits {\nrate_per_second = 0\nuser {\n" + NoLimits + "}\ninstallation {\n" + NoLimits + "}\n}\n"

// nothing is a URL at which no server responds.
const nothing = "http://127.0.0.1:1"

// HCL returns the file's content.
func (c Config) HCL() string {
	drain, certificate, raft, log, limits := "", "", "", "", ""
	if !c.Earlier {
		drain = fmt.Sprintf("  drain_delay = %q\n", c.Drain.String())
	}
	if !strings.Contains(c.More, "limits {") {
		limits = unlimited
	}
	if c.Certificate != "" {
		certificate = fmt.Sprintf("  tls {\n    cert_file = %q\n    key_file  = %q\n  }\n", c.Certificate+".pem",
			c.Certificate+"-key.pem")
	}
	if c.Raft != "" {
		raft = "raft {\n" + c.Raft + "\n}\n"
	}
	if c.LogLevel != "" {
		log = fmt.Sprintf("log {\n  level  = %q\n  format = \"json\"\n}\n", c.LogLevel)
	}
	sandboxes := ""
	if len(c.APIURLs) > 0 {
		sandboxes = fmt.Sprintf("sandboxes {\n  api_urls = [\"%s\"]\n}\n", strings.Join(c.APIURLs, `", "`))
	}
	tls := func(name string) string { return filepath.Join(c.TLS, name) }
	return fmt.Sprintf(`node_name        = %q
data_dir         = %q
bootstrap_expect = %d
retry_join       = ["%s"]
http {
  address = %q
%s%s}
peer {
  address   = %q
  ca_file   = %q
  cert_file = %q
  key_file  = %q
%s}
%snomad {
  address = %q
%s
}
vault {
  address        = %q
  role_id        = %q
  secret_id_file = %q
%s
}
git {
  verify_tokens = false
}
`, c.Name, c.Data, cmp.Or(c.Expect, len(c.Peers)), strings.Join(c.Peers, `", "`), c.HTTP, drain, certificate,
		c.Peer, tls("ca.pem"), tls(c.Name+".pem"), tls(c.Name+"-key.pem"), c.Peering, raft,
		cmp.Or(c.Nomad, nothing), c.Backend, cmp.Or(c.Vault, nothing), cmp.Or(c.Role, "none"), c.SecretID,
		c.Secrets) + limits + log + sandboxes + c.More
}
