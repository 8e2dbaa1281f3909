# The Nomad agent of `make stack` and of the tests: server and client at once. The
# words in capitals are filled in by deploy/local, which appends blocks for Vault
# and ACLs.
name      = "local"
data_dir  = "DATA_DIR"
bind_addr = "127.0.0.1"
log_level = "INFO"

disable_update_check = true
leave_on_interrupt   = false
leave_on_terminate   = false

ports {
  http = HTTP_PORT
  rpc  = RPC_PORT
  serf = SERF_PORT
}

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = true
  bootstrap_expect = 1
  num_schedulers   = 2
  raft_multiplier  = 1

  # See deploy/nomad/client.hcl.
  default_scheduler_config {
    preemption_config {
      service_scheduler_enabled = true
    }
  }

  # How many events Nomad keeps for those who come late.
  event_buffer_size = 10000

  # A client that was killed and is back is soon believed again.
  heartbeat_grace   = "5s"
  min_heartbeat_ttl = "5s"
}

client {
  enabled           = true
  node_pool         = "NODE_POOL"
  network_interface = "lo"
  network_speed     = 10000
  min_dynamic_port  = MIN_DYNAMIC_PORT
  max_dynamic_port  = MAX_DYNAMIC_PORT

  # Room for many small sandboxes on a small machine.
  cpu_total_compute        = 32000
  gc_interval              = "1m"
  gc_max_allocs            = 200
  gc_disk_usage_threshold  = 99
  gc_inode_usage_threshold = 99

  # See deploy/nomad/client.hcl.
  template {
    vault_retry {
      attempts    = 0
      backoff     = "250ms"
      max_backoff = "1m"
    }
  }

  options = {
    # Asking clouds for metadata takes seconds on a machine that is in none.
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}

plugin "raw_exec" {
  config {
    enabled = true
  }
}

plugin "docker" {
  config {
    # Images are built here and can't be pulled again.
    gc {
      image = false
    }
    volumes {
      enabled = true
    }
  }
}
