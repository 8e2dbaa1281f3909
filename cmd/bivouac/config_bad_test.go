package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// badConfigs are changes of testdata/config/good_least.hcl that make mistakes: pairs of the old
// and the new text, and what is added at the end. "# want: text" expects one mistake on its line.
var badConfigs = []struct {
	name  string
	edits []string
	added string
}{
	{name: "backup", added: `
backup { # want: "dir" is required
  interval = "1s" # want: interval: must be between 10s and 720h0m0s
  retain   = 0    # want: retain: must be between 1 and 10000
}
`},
	{name: "block_missing", edits: []string{
		`node_name = "n1"`,
		`node_name = "n1" # want: the block "nomad" is required`,
		`
nomad {
  address = "https://nomad.example.org:4646"
}
`,
		``,
	}},
	{name: "block_twice", edits: []string{
		`  address = "127.0.0.1:8440"`,
		`  address = "127.0.0.1:8440"
}

http { # want: the block "http" is there already, on line 5
  address = "127.0.0.1:8450"`,
	}},
	{name: "bootstrap_expect", edits: []string{
		`retry_join = ["10.1.0.12:8441"]`,
		`retry_join = ["10.1.0.12:8441"]
bootstrap_expect = 10 # want: bootstrap_expect: must be between 0 and 9`,
	}},
	{name: "bootstrap_expect_fraction", edits: []string{
		`retry_join = ["10.1.0.12:8441"]`,
		`retry_join = ["10.1.0.12:8441"]
bootstrap_expect = 1.5 # want: bootstrap_expect: must be a whole number`,
	}},
	{name: "cors", added: `
cors {
  origins = ["*"] # want: origins: member 1: "*" must be an origin
}
`},
	{name: "git", added: `
git {
  verify_tokens = "yes" # want: verify_tokens: must be true or false
  allowed_hosts = ["https://git.example.org"] # want: allowed_hosts: member 1: "https://git.example.org" must be a host name
}
`},
	{name: "http_address", edits: []string{
		`  address = "127.0.0.1:8440"`,
		`  address = "8440" # want: address: "8440" must be "host:port"`,
	}},
	{name: "http_tls", edits: []string{
		`  address = "127.0.0.1:8440"`,
		`  address = "127.0.0.1:8440"
  tls { # want: Missing required argument: The argument "key_file" is required
    cert_file = "n1.pem"
  }`,
	}},
	{name: "limits", added: `
limits {
  body_size           = 1 # want: body_size: must be between 1024 and 67108864
  snapshot_size       = 1 # want: snapshot_size: must be between 1048576 and 1099511627776
  rate_per_second     = -1 # want: rate_per_second: must be between 0 and 1e+06
  connections         = 1 # want: connections: must be between 64 and 1048576
  connections_per_address = -1 # want: connections_per_address: must be between 0 and 1048576
  trusted_proxies     = ["proxy"] # want: trusted_proxies: member 1: "proxy" must be an address or a range
}
`},
	{name: "limits_sandboxes", added: `
limits {
  user {
    running_sandboxes = -1 # want: running_sandboxes: must be between 0 and
    starts_per_minute = 100000 # want: starts_per_minute: must be between 0 and 10000
    cpu               = "many" # want: cpu: must be a whole number
    disk              = 5 # want: An argument named "disk" is not expected here
  }
  installation "all" { # want: Extraneous label for installation
  }
  on_limit = "wait" # want: on_limit: "wait" must be one of "refuse", "pause_oldest"
}
`},
	{name: "llm", added: `
llm {
  gateway = "on" # want: gateway: must be true or false
  hosts = ["10.1.2"] # want: hosts: member 1: "10.1.2" is no address such as
  models = ["gpt 5"] # want: models: member 1: "gpt 5" must be the name of a model
  prices = [{ model = "gpt-5", input = 1 }] # want: prices: member 1: output is missing
  budgets {
    per_task = -1 # want: per_task: must be between 0 and 1e+06
    per_day = 1 # want: An argument named "per_day" is not expected here
  }
}
`},
	{name: "llm_lists", added: `
llm {
  hosts = [] # want: hosts: the list is empty: name a host, or leave it out for "vendors"
  prices = [{ model = "a", input = 1, output = 1 }, { model = "a", input = 2, output = 1 }] # want: prices: member 2: "a" has a price already: remove one
}
`},
	{name: "llm_prices", added: `
llm {
  prices = { a = 1 } # want: prices: must be a list such as
}
`},
	{name: "llm_price", added: `
llm {
  prices = [{ model = "a", input = 1, output = 1, cache = 1 }] # want: prices: member 1: "cache" is not expected here
}
`},
	{name: "log", added: `
log {
  level  = "loud" # want: level: "loud" must be one of "debug", "info", "warn", "error"
  format = "xml" # want: format: "xml" must be one of "text", "json"
}
`},
	{name: "node_name", edits: []string{
		`node_name = "n1"`,
		`node_name = "Node 1" # want: node_name: "Node 1" must be 1 to 63 characters`,
	}},
	{name: "node_name_missing", edits: []string{
		`node_name = "n1"
data_dir  = "/var/lib/bivouac"`,
		`data_dir = "/var/lib/bivouac" # want: Missing required argument: The argument "node_name" is required`,
	}},
	{name: "nomad_address", edits: []string{
		`  address = "https://nomad.example.org:4646"`,
		`  address = "nomad.example.org:4646" # want: address: ` +
			`"nomad.example.org:4646" must be "http://host:port" or "https://host:port"`,
	}},
	{name: "nomad_pair", edits: []string{
		`nomad {
  address = "https://nomad.example.org:4646"`,
		`nomad { # want: nomad: cert_file and key_file go together
  address   = "http://127.0.0.1:4646"
  cert_file = "nomad.pem"
  lost_after = "1s" # want: lost_after: must be between 1m0s and 720h0m0s`,
	}},
	{name: "nomad_variable", edits: []string{
		`  address = "https://nomad.example.org:4646"`,
		`  address  = "http://127.0.0.1:4646"
  variable = "nomad/jobs/x" # want: variable: must be a path of letters, digits`,
	}},
	{name: "nomad_variable_prefix", edits: []string{
		`node_name = "n1"`,
		`node_name = "n1" # want: nomad: variable is required, since`,
		`  address = "https://nomad.example.org:4646"`,
		`  address  = "http://127.0.0.1:4646"`,
		`  role_id        = "bivouac"`,
		`  role_id        = "bivouac"
  prefix         = "eu.west"`,
	}},
	{name: "null", edits: []string{
		`node_name = "n1"
data_dir  = "/var/lib/bivouac"`,
		`node_name = null # want: node_name: must not be null`,
		`retry_join = ["10.1.0.12:8441"]`,
		`retry_join = ["10.1.0.12:8441"]
data_dir  = "" # want: data_dir: must not be empty`,
	}},
	{name: "peer_advertise", edits: []string{
		`peer {
  address   = "10.1.0.11:8441"`,
		`peer { # want: peer: advertise is required, since others can't reach "0.0.0.0:8441"
  address   = "0.0.0.0:8441"`,
	}},
	{name: "peer_advertise_unspecified", edits: []string{
		`  address   = "10.1.0.11:8441"`,
		`  address   = "10.1.0.11:8441"
  advertise = "0.0.0.0:8441" # want: advertise: "0.0.0.0:8441" is not an address that others can reach`,
	}},
	{name: "peer_lifetime", edits: []string{
		`  address   = "10.1.0.11:8441"`,
		`  address   = "10.1.0.11:8441"
  certificate_lifetime = "1m" # want: certificate_lifetime: must be between 10m0s and 8760h0m0s`,
	}},
	{name: "peer_two_ways", edits: []string{
		`peer {`,
		`peer { # want: peer: ca_key_file and vault_pki are two ways to the same: choose one
  ca_key_file = "ca-key.pem"
  vault_pki {
    mount = "/" # want: mount: "/" must be a path in Vault
    role  = "n1"
  }`,
	}},
	{name: "peer_one_file", edits: []string{
		`peer {`,
		`peer { # want: peer: cert_file and key_file must be two files where the node renews them
  ca_key_file = "ca-key.pem"`,
		`key_file  = "n1-key.pem"`,
		`key_file  = "n1.pem"`,
	}},
	{name: "policy", added: `
policy {
  idle_timeout        = "soon" # want: idle_timeout: "soon" is not a duration such as "30m" or "72h", nor "never"
  max_running         = 5 # want: max_running: must be a duration in quotes
  delete_paused_after = "-1h" # want: delete_paused_after: must be between 1s and 87600h0m0s, or "never"
  pause_after         = "1h" # want: An argument named "pause_after" is not expected here
}
`},
	{name: "raft_duration", added: `
raft {
  heartbeat_timeout = 250 # want: heartbeat_timeout: must be a duration in quotes
  election_timeout  = "soon" # want: election_timeout: "soon" is not a duration
}
`},
	{name: "raft_lease", added: `
raft { # want: raft: leader_lease_timeout (600ms) must not be above heartbeat_timeout (500ms)
  leader_lease_timeout = "600ms"
}
`},
	{name: "raft_log_store", added: `
raft {
  log_store = "sqlite" # want: log_store: "sqlite" must be one of "boltdb", "wal"
}
`},
	{name: "raft_timers", added: `
raft { # want: raft: election_timeout (100ms) must not be below heartbeat_timeout (500ms)
  election_timeout = "100ms"
}
`},
	{name: "retry_join", edits: []string{
		`node_name = "n1"`,
		`node_name = "n1" # want: retry_join is required unless bootstrap_expect is 1`,
		`retry_join = ["10.1.0.12:8441"]`,
		`retry_join = ["10.1.0.12:8441", "10.1.0.13"] # want: retry_join: member 2: "10.1.0.13" must be "host:port"`,
	}},
	{name: "metrics", added: `
metrics { # want: Missing required argument
}
`},
	{name: "ui", added: `
ui {
  enabled   = "yes" # want: enabled: must be true or false
  directory = "" # want: directory: must not be empty
}
`},
	{name: "metrics_address", added: `
metrics {
  address = "9102" # want: address: "9102" must be
}
`},
	{name: "sandboxes", added: `
sandboxes {
  start_timeout = "10ms" # want: start_timeout: must be between 1s and 1h0m0s
  stop_timeout  = "10ms" # want: stop_timeout: must be between 1s and 1h0m0s
  url           = "{address}:{port}" # want: url: "{address}:{port}" must be a URL
  domain        = "*.Example.org" # want: domain: "*.Example.org" must be a lower-case domain
  public_url    = "https://example.org/x" # want: public_url: "https://example.org/x" must have nothing beside
  api_urls      = ["http://10.0.0.1:8440", "http://10.0.0.2:8440/llm"] # want: api_urls: member 2: "http://10.0.0.2:8440/llm" must have nothing beside
  wake          = "no" # want: wake: must be true or false
}
`},
	{name: "sandboxes_deadlines", edits: []string{
		`  secret_id_file = "secret-id"`,
		`  secret_id_file = "secret-id"
  secret_retention   = "1m" # want: secret_retention: must be between 1h0m0s and 87600h0m0s
  unreferenced_grace = "1m" # want: unreferenced_grace: must be between 2m0s and 24h0m0s`,
	}, added: `
sandboxes { # want: sandboxes: pause_grace (1m0s) must be shorter than stop_timeout (30s)
  stop_timeout = "30s"
  pause_grace  = "1m"
}
`},
	{name: "sandboxes_domain", added: `
sandboxes { # want: sandboxes: domain needs url = "proxy" # want: sandboxes: public_url must not be below domain
  url        = "http://{address}:{port}"
  domain     = "example.org"
  public_url = "https://api.example.org"
}
`},
	{name: "sandboxes_url", added: `
sandboxes {
  url = "door" # want: "door" is called "proxy" now
}
`},
	{name: "syntax", added: `
log {
  level = info = debug # want: Missing newline after argument
}
`},
	{name: "type", edits: []string{
		`node_name = "n1"`,
		`node_name = "n1" # want: retry_join is required unless bootstrap_expect is 1`,
		`retry_join = ["10.1.0.12:8441"]`,
		`bootstrap_expect = "3" # want: bootstrap_expect: must be a whole number
retry_join       = "10.1.0.12:8441" # want: retry_join: must be a list of strings`,
	}},
	{name: "unknown_argument", edits: []string{
		`retry_join = ["10.1.0.12:8441"]`,
		`retry_join = ["10.1.0.12:8441"]
color     = "red" # want: Unsupported argument: An argument named "color" is not expected here`,
	}},
	{name: "unknown_block", added: `
consul { # want: Unsupported block type: Blocks of type "consul" are not expected here
}
`},
	{name: "unknown_nested", edits: []string{
		`  address = "127.0.0.1:8440"`,
		`  address = "127.0.0.1:8440"
  port    = 80 # want: An argument named "port" is not expected here`,
	}},
	{name: "variable", edits: []string{
		`retry_join = ["10.1.0.12:8441"]`,
		`retry_join = ["10.1.0.12:8441"]
bootstrap_expect = nodes # want: Variables not allowed`,
	}},
	{name: "vault_role", edits: []string{
		`vault {`,
		`vault { # want: vault: exactly one of role_id and role_id_file is required`,
		`  address        = "https://vault.example.org:8200"
  role_id        = "bivouac"`,
		`  address        = "https://vault.example.org:8200"`,
	}},
	{name: "vault_secret", edits: []string{
		`vault {
  address        = "https://vault.example.org:8200"
  role_id        = "bivouac"
  secret_id_file = "secret-id"`,
		`vault { # want: Missing required argument: The argument "secret_id_file" is required
  address   = "https://vault.example.org:8200"
  role_id   = "bivouac"
  secret_id = "canary-secret-id" # want: An argument named "secret_id" is not expected here`,
	}},
}

// writeBadConfig writes one of badConfigs and returns its path.
func writeBadConfig(t *testing.T, name string) string {
	t.Helper()
	src, err := os.ReadFile("testdata/config/good_least.hcl")
	if err != nil {
		t.Fatal(err)
	}
	text, known := string(src), false
	for _, bad := range badConfigs {
		if bad.name != name {
			continue
		}
		known = true
		for i := 0; i < len(bad.edits); i += 2 {
			if n := strings.Count(text, bad.edits[i]); n != 1 {
				t.Fatalf("%s: the text to replace is there %d times: %s", name, n, bad.edits[i])
			}
			text = strings.Replace(text, bad.edits[i], bad.edits[i+1], 1)
		}
		text += bad.added
	}
	if !known || !strings.Contains(text, "# want: ") {
		t.Fatalf("%s is not a change that makes a mistake", name)
	}
	path := filepath.Join(t.TempDir(), name+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
