# What a Nomad client needs so that Bivouac's sandboxes can run on it: merge it
# into the agent's configuration. Nomad's servers need server.hcl, and Vault has to
# trust them once: deploy/README.md has the steps, deploy/vault/nomad-workloads.hcl
# the policy.

client {
  # Machines on which nothing else runs: node-pool.hcl, and nomad { node_pool } of the
  # nodes' configuration.
  node_pool = "sandboxes"

  # Where the plugin "mkdir" makes the sandboxes' workspaces: keep it on a disk
  # with room, and back it up if the work in it matters.
  host_volumes_dir = "/var/lib/nomad/host_volumes"

  # The address on which sandboxes have their ports: nomad { host_network } of the
  # nodes' configuration names it. Take a network that only the nodes reach.
  # host_network "sandboxes" {
  #   interface = "eth1"
  # }

  # A restart of the agent renders the templates of running tasks again. By
  # default Nomad kills a task after 12 tries in about five minutes, for want of
  # Vault or because the token has ended that the task started with. 0 is without
  # end: the task runs on.
  template {
    vault_retry {
      attempts    = 0
      backoff     = "250ms"
      max_backoff = "1m"
    }
  }
}

vault {
  enabled               = true
  address               = "https://vault.example.org:8200"
  jwt_auth_backend_path = "jwt-nomad/"
}

# On docker's own bridge containers reach each other, what the machine serves on all
# addresses, and a cloud's metadata service. So each client has a network for them:
#
#   sandbox-network.sh up      with deploy/systemd/bivouac-sandbox-network.service
#
# nomad { docker_network = "bivouac" } of the nodes' configuration names it. Nomad
# publishes each port over TCP and UDP; the rules of that network drop the latter.

plugin "docker" {
  config {
    # A paused sandbox comes back with the image it had.
    gc {
      image_delay = "168h"
    }

    # Sandboxes run what a model wrote. Their containers drop every capability but
    # those of the spec's cap_add, which has to be allowed here (Nomad's default is).
    # A pids_limit below 1024 refuses them.
    allow_privileged = false

    # Where specs name a runtime:
    # allow_runtimes = ["runc", "runsc"]
  }
}
