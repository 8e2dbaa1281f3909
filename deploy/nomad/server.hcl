# What Nomad's servers need for Bivouac's sandboxes: merge it into their configuration.
# client.hcl is for the clients, and a machine that is both has both files.

# Tasks log in to Vault with an identity of their job's (deploy/vault/nomad-workloads.hcl).
vault {
  enabled = true
  default_identity {
    aud = ["vault.io"]
    ttl = "1h"
  }
}

server {
  # Nomad keeps 100 events for clients that come late, which a burst of starts
  # exceeds; a client that missed some lists everything again.
  event_buffer_size = 10000

  # The members of warm pools (priority 30) give way to users' starts (50) where
  # the machines are full. A cluster that is there already gets it by
  # nomad operator scheduler set-config -preempt-service-scheduler=true
  default_scheduler_config {
    preemption_config {
      service_scheduler_enabled = true
    }
  }
}
