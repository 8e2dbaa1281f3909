node_name        = "n1"
data_dir         = "data"
bootstrap_expect = 3
retry_join       = ["10.1.0.12:8441", "10.1.0.13:8441"]

http {
  address       = ":8440"
  drain_delay   = "8s"
  drain_timeout = "1m"
  tls {
    cert_file = "api.pem"
    key_file  = "/etc/bivouac/api-key.pem"
  }
}

peer {
  address   = "0.0.0.0:8441"
  advertise = "10.1.0.11:8441"
  ca_file   = "ca.pem"
  cert_file = "n1.pem"
  key_file  = "n1-key.pem"

  ca_key_file          = "ca-key.pem"
  certificate_lifetime = "240h"
}

raft {
  log_store            = "wal"
  heartbeat_timeout    = "500ms"
  election_timeout     = "500ms"
  leader_lease_timeout = "300ms"
  snapshot_interval    = "1m"
  snapshot_threshold   = 1000
  trailing_logs        = 2000
  trailing_bytes       = 134217728
  propose_timeout      = "8s"
  read_timeout         = "4s"
  dead_after           = "2h"
  voters               = 5
}

nomad {
  address        = "https://nomad.example.org:4646"
  namespace      = "agents"
  region         = "eu"
  datacenters    = ["dc1", "dc2"]
  token_file     = "nomad-token"
  ca_file        = "nomad-ca.pem"
  cert_file      = "nomad.pem"
  key_file       = "nomad-key.pem"
  node_pool      = "agents"
  host_network   = "sandboxes"
  docker_network = "bivouac"
  volume_plugin  = "zfs"
  vault_role     = "sandboxes"
  variable       = "marks/agents"
  lost_after     = "1h"
}

vault {
  address        = "https://vault.example.org:8200"
  mount          = "kv"
  prefix         = "agents"
  namespace      = "team"
  auth_mount     = "nodes"
  role_id_file   = "role-id"
  secret_id_file = "secret-id"
  ca_file        = "vault-ca.pem"

  unreferenced_grace = "5m"
  secret_retention   = "24h"
  collect_interval   = "1m"
}

sandboxes {
  start_timeout = "90s"
  stop_timeout  = "45s"
  pause_grace   = "10s"
  placement_grace = "30s"
  orphan_retention  = "24h"
  removals_per_hour = 20
  url           = "proxy"
  domain        = "sandboxes.example.net"
  public_url    = "https://bivouac.example.org"
  wake          = false
  max_stale     = "2m"
  api_urls      = ["https://n1.example.org:8440", "http://10.0.0.2:8440"]
}

ui {
  directory = "page"
}

metrics {
  address = "127.0.0.1:9102"
}

limits {
  body_size           = 65536
  snapshot_size       = 1073741824
  rate_per_second     = 10
  connections         = 2048
  connections_per_address = 100
  trusted_proxies     = ["127.0.0.1", "10.0.0.0/8"]
  user {
    running_sandboxes = 5
    total_sandboxes   = 20
    starts_per_minute = 10
    cpu               = 4000
    memory            = 8192
    state_bytes       = 33554432
    event_bytes       = 5368709120
  }
  installation {
    running_sandboxes = 500
    starts_per_minute = 600
  }
  on_limit = "pause_oldest"
}

policy {
  idle_timeout        = "1h"
  max_running         = "never"
  delete_paused_after = "720h"
}

git {
  verify_tokens = true
  allowed_hosts = ["git.example.org", "git.example.org:8443"]
}

cors {
  origins = ["https://app.example.org"]
}

llm {
  gateway = true
  hosts   = ["vendors", "llm.example.org", "10.1.2.0/24"]
  models  = ["gpt-*", "claude-*"]
  prices = [
    { model = "gpt-5*", input = 1.25, output = 10, cached_input = 0.125, cache_write = 1.5 },
    { model = "*", input = 1, output = 2 },
  ]
  servers = [
    { host = "llm.example.org:8443", headers = { "X-Team" = "agents" }, slots = 4 },
  ]
  profiles = [
    { model = "qwen*", max_input_tokens = 32768, temperature = 0.2, disable_vision = true },
  ]
  budgets {
    per_task     = 5
    per_user_day = 50.5
  }
}

backup {
  dir      = "backups"
  interval = "30m"
  retain   = 48
}

log {
  level  = "debug"
  format = "json"
}
