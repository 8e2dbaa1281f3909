# A node of a Bivouac cluster: bivouac server --config /etc/bivouac/node.hcl
#
# Every member is explained in `go doc bivouac.dev/bivouac/cmd/bivouac`, which the
# packages have as /usr/share/doc/bivouac/configuration.txt. Members
# that are commented out show their default. Unknown members and values out of
# bounds are refused, all at once: `bivouac server --config node.hcl --check`,
# which also checks the files that are named here, their modes and their dates.
# Relative paths count from this file's folder. No secret stands in here, only
# the files that hold them (mode 0600, owned by the user the node runs as).

node_name = "node-1"           # the name in the node's certificate
data_dir  = "/var/lib/bivouac" # the Raft log and snapshots; a disk of its own is best

# The nodes that form the cluster on its first start. They find each other,
# then and later, in any order. The list may hold this node itself.
bootstrap_expect = 3
retry_join       = ["10.0.0.11:8441", "10.0.0.12:8441", "10.0.0.13:8441"]

# The API. A load balancer in front (deploy/haproxy/haproxy.cfg) may ask any
# node anything; GET /ready says whether one can serve.
http {
  address = "0.0.0.0:8440"

  # On SIGTERM /ready fails, and the node serves on for drain_delay: longer than the
  # load balancer needs to notice. Then it waits drain_timeout for what is under way.
  # drain_delay   = "5s"
  # drain_timeout = "30s" # systemd's TimeoutStopSec covers both

  # tls {
  #   cert_file = "/etc/bivouac/tls/http.pem"     # read again when they change
  #   key_file  = "/etc/bivouac/tls/http-key.pem"
  # }
}

# Node to node. Mutual TLS always: `bivouac tls init --dir tls` makes the CA,
# `bivouac tls issue --dir tls --node node-1` a node's certificate, for 30 days.
# `bivouac tls renew --dir tls` makes the next ones; copy them, no restart is needed.
# Warnings begin ten days before the end.
peer {
  address   = "0.0.0.0:8441"
  advertise = "10.0.0.11:8441"
  ca_file   = "/etc/bivouac/tls/ca.pem"
  cert_file = "/etc/bivouac/tls/node-1.pem"
  key_file  = "/etc/bivouac/tls/node-1-key.pem"

  # Or the node renews its certificate itself. Its user must be able to write the
  # folder of cert_file (the unit needs ReadWritePaths for it). Best is Vault's PKI,
  # with a role that is bound to this node's name (deploy/vault/pki.hcl).
  # vault_pki {
  #   mount = "pki-bivouac"
  #   role  = "node-1"
  # }
  # Where Vault's PKI is none of yours: ca_key_file, a copy of ca-key.pem. Then whoever
  # steals this machine can make the certificate of any node, and a new CA on all nodes
  # is the only remedy.
  # certificate_lifetime = "720h"
}

# raft {
#   heartbeat_timeout    = "500ms" # raise all three between distant machines
#   election_timeout     = "500ms"
#   leader_lease_timeout = "300ms"
#   trailing_bytes       = 268435456 # the log's size that a snapshot is taken at
#   dead_after           = "1h" # then a newcomer takes the place of a voter that is silent
#   voters               = 3    # dead ones are removed only down to so many; default: bootstrap_expect
# }

# Where sandboxes run. Clients need the drivers the specs name, the volume
# plugin, and `vault { enabled = true }` with workload identities
# (deploy/nomad/client.hcl).
nomad {
  address = "http://127.0.0.1:4646"
  # One of its own for each cluster: whoever may submit jobs in it can read the
  # sandboxes' keys (deploy/vault/nomad-workloads.hcl). The default is "default". A
  # cluster with sandboxes keeps the one it has.
  namespace = "sandboxes"
  # datacenters = ["*"]
  # The machines on which nothing else runs (deploy/nomad/node-pool.hcl). The default
  # is Nomad's own.
  node_pool = "sandboxes"
  # The clients' docker network that deploy/nomad/sandbox-network.sh makes: sandboxes
  # don't reach each other or the machine in it. The default is docker's own bridge.
  docker_network = "bivouac"
  # host_network = "sandboxes" # the clients' address for the sandboxes' ports
  #                            # (deploy/nomad/client.hcl); default: their main one
  # Read again when they change. The policy is deploy/nomad/bivouac.policy.hcl.
  # token_file  = "/etc/bivouac/nomad-token"
  # ca_file     = "/etc/bivouac/nomad-ca.pem"
  # Where each leader notes how far the state had come, so that one with an older
  # state deletes nothing. The default is "bivouac/" and vault's prefix: clusters
  # that share a Nomad need one each.
  # variable    = "bivouac/bivouac"
}

# Where secret values are kept: KV version 2, with an AppRole that carries the
# policy of deploy/vault/bivouac.hcl.
vault {
  address        = "https://vault.example.org:8200"
  role_id_file   = "/etc/bivouac/vault/role-id"
  secret_id_file = "/etc/bivouac/vault/secret-id"
  # mount   = "secret"
  # prefix  = "bivouac" # a cluster that shares the mount needs its own
  # ca_file = "/etc/bivouac/vault-ca.pem"
  # What nothing refers to any more is deleted, when it is that old: it can be
  # undeleted until it is destroyed, secret_retention later.
  # unreferenced_grace = "15m"
  # secret_retention   = "168h"
  # collect_interval   = "10m"
}

# sandboxes {
#   start_timeout   = "2m"  # then a start ends in ERROR, with the reason
#   stop_timeout    = "1m"  # then a pause is shown in ERROR; stopping goes on
#   pause_grace     = "20s" # for conversations to pause before the stop
#   placement_grace = "15s" # for a client with room to appear
#   # What no sandbox owns any more, and what a policy deleted: the workspace stays
#   # so long (bivouac operator orphans list).
#   orphan_retention  = "168h"
#   removals_per_hour = 0 # of each kind by itself; 0 is the larger of 5 and a tenth
#   # How clients reach sandboxes. "proxy" is through the nodes, at
#   # <api>/sandboxes/<id>/<port>/; a pattern of a direct URL is possible, too.
#   url        = "proxy"
#   public_url = "https://bivouac.example.org" # default: as the request came
#   # Open streams end on a node that has had no leader for so long: it can't learn
#   # whose access was taken away.
#   max_stale  = "5m"
#   # The nodes as sandboxes reach them, tried in turn. With them agents ask models
#   # through the nodes, and no model key is in a sandbox. Where the sandboxes' network
#   # refuses the nodes' own, sandbox-network.env has these in API.
#   api_urls   = ["http://10.0.0.11:8440", "http://10.0.0.12:8440", "http://10.0.0.13:8440"]
#   # A host of its own for each port, "<port>-<id>.<domain>". Use it where people
#   # open sandboxes in browsers: pages of different sandboxes then have different
#   # origins. It needs a wildcard DNS entry that leads here, best a domain that
#   # serves nothing else, and HTTPS. deploy/DOMAINS.md has the steps.
#   domain     = "sandboxes.example.net"
#   wake       = true # a paused sandbox is resumed by a message, a run or ?wake=true
# }

# When a sandbox is paused or deleted by itself. A spec's and a user's policy go
# before it. This, user, installation and on_limit of the limits, git, cors and llm are
# the cluster's: the first leader's file sets them, from then on `bivouac config set
# FILE` alone. Delete them here once the cluster runs.
# policy {
#   idle_timeout        = "never" # "1h": nobody used it, its agent did nothing
#   max_running         = "never"
#   delete_paused_after = "never"
# }

limits {
  # What the load balancer says of the client's address is believed. It has to refuse or normalise a
  # request with both Content-Length and Transfer-Encoding, as HAProxy does.
  trusted_proxies = ["10.0.0.10/32"]

  # Requests of one client address, those to sandboxes included. 0 is no limit.
  # Without trusted_proxies all clients of a load balancer are one address.
  rate_per_second = 500

  # body_size       = 6291456
  # snapshot_size   = 17179869184 # bytes of a file for `bivouac operator snapshot restore`
  # connections     = 16384 # open at a time; less if file descriptors are
  # connections_per_address = 512 # of one client; not of trusted_proxies

  # What sandboxes may use. `bivouac users set` gives a user others. These are the
  # defaults of a new cluster; 0 is no limit.
  user {
    running_sandboxes = 20
    total_sandboxes   = 200
    starts_per_minute = 60
    # cpu             = 0 # MHz
    # memory          = 0 # MiB
    # state_bytes       = 67108864 # kept in the state of the cluster
    # event_bytes       = 10737418240 # of a user's conversations
  }
  installation {
    running_sandboxes = 1000 # and the same others
    total_sandboxes   = 10000
    starts_per_minute = 600
    # state_bytes       = 1073741824
  }
  # on_limit = "refuse" # or "pause_oldest": make room among the user's own
}

# git {
#   verify_tokens = true
#   allowed_hosts = [] # providers on the inside
# }

# cors {
#   origins = ["https://agents.example.org"]
# }

# The model gateway: sandboxes ask it with a token in place of the users' model keys.
# A model server on a private address stands in hosts by its address. Prices are dollars for a
# million tokens. Without one the vendor's list price counts where the vendor itself is asked;
# elsewhere the model costs nothing, so that no budget stops it.
# llm {
#   gateway = true
#   hosts   = ["vendors"] # also "llm.example.org", "*.example.org", "10.1.2.0/24"
#   models  = []          # "gpt-5*", "anthropic/claude-*"; none is every model
#   prices  = [{ model = "gpt-5*", input = 1.25, output = 10, cached_input = 0.125 }]
#   # A server of one's own: certificates in PEM (ca = <<-EOT … EOT), headers that are no secrets,
#   # and how many requests of a node it has at once: others wait, each user in turn.
#   servers = [{ host = "llm.example.org:8443", headers = { "X-Team" = "agents" }, slots = 4 }]
#   # What agents are told of a model that the built-in table or the server does not say.
#   profiles = [{ model = "qwen*", max_input_tokens = 32768, timeout = 900 }]
#   budgets {
#     per_task     = 0 # of a conversation
#     per_user_day = 0
#   }
# }

# The leader saves the whole state by itself: bivouac operator snapshot list.
# A directory that all nodes share (on another machine) is best; with one on each
# node, each keeps what it made while it led. Secret values are not in it: back up
# Vault too (bivouac runbook backup). The unit needs ReadWritePaths for it.
# backup {
#   dir      = "/var/lib/bivouac-backups"
#   interval = "1h"
#   retain   = 24
# }

# Copies of the sandboxes' workspaces, for when a Nomad client is lost with its disk
# (bivouac runbook client-lost). The store is a directory that all nodes share, or S3:
# "s3://bucket?region=eu-central-1&prefix=bivouac/". Copies are encrypted
# (bivouac runbook copies).
# Nomad's policy has alloc-exec for it; image is that of deploy/docker.
# workspaces {
#   backup   = "file:///var/lib/bivouac-workspaces"
#   interval = "15m"
#   retain   = 3
#   image    = "bivouac/sandbox-agent:1"
# }

# The web page at /, for people's browsers: https://<the balancer>/. Without the block there
# is none. The packages have it; "directory" is for one that lies elsewhere.
# ui {
#   enabled   = true
#   directory = "/usr/share/bivouac/page"
# }

# /metrics on a port of its own, without a key. Without the block the API's port has
# it. Prometheus: static_configs: [{targets: ["10.0.0.11:9102"]}].
# metrics {
#   address = "10.0.0.11:9102"
# }

log {
  level  = "info"
  format = "json"
}
