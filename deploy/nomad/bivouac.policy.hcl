# What a Bivouac node may do in Nomad, where ACLs are on:
#
#   nomad acl policy apply bivouac bivouac.policy.hcl
#   nomad acl token create -name bivouac -policy bivouac
#
# The namespace is that of the node's configuration. Give the cluster one of its
# own, with nobody else who may submit jobs in it: a job "sandbox-<id>" there reads
# that sandbox's key (deploy/vault/nomad-workloads.hcl).
namespace "default" {
  capabilities = [
    "submit-job", "read-job", "list-jobs", "read-logs",
    "host-volume-create", "host-volume-read", "host-volume-write", "host-volume-delete",
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
