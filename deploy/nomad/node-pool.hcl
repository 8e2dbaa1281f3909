# The machines on which sandboxes run, and nothing else: nomad { node_pool } of the
# nodes' configuration, client { node_pool } of the clients' (client.hcl).
#
#   nomad node pool apply node-pool.hcl
node_pool "sandboxes" {
  description = "the sandboxes of Bivouac"
}
