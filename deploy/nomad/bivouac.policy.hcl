# What a Bivouac node may do in Nomad, where ACLs are on:
#
#   nomad namespace apply namespace.hcl
#   nomad node pool apply node-pool.hcl
#   nomad acl policy apply bivouac bivouac.policy.hcl
#   nomad acl token create -name bivouac -policy bivouac
#
# The namespace is that of the node's configuration, nomad { namespace }: one of its
# own for each cluster. Give nobody else submit-job or alloc-exec in it, nor a policy
# of "write": a job "sandbox-<id>" there reads that sandbox's key
# (deploy/vault/nomad-workloads.hcl). A cluster that is there already stays in the
# namespace it has, mostly "default": name that here. host-volume-create implies
# host-volume-read; host-volume-write would imply host-volume-register, which makes a
# volume of any folder of a client.
namespace "sandboxes" {
  capabilities = [
    "submit-job", "read-job", "list-jobs", "read-logs",
    "host-volume-create", "host-volume-delete",
    # A job beside a workspace is spoken to by exec: to copy workspaces
    # (workspaces { backup }), and for "bivouac operator client drain". It gives no more
    # than submit-job does. With raw_exec they need "alloc-node-exec" too.
    "alloc-exec",
  ]

  # Where leaders note how far the state had come: nomad { variable } of the
  # node's configuration.
  variables {
    path "bivouac/*" {
      capabilities = ["read", "write"]
    }
  }
}

# A job may mount the volume of its sandbox.
host_volume "sandbox-*" {
  policy = "write"
}

node {
  policy = "read"
}
