# What a Bivouac node may do in Nomad, where ACLs are on:
#
#   nomad acl policy apply bivouac bivouac.policy.hcl
#   nomad acl token create -name bivouac -policy bivouac
#
# The namespace is that of the node's configuration.
namespace "default" {
  policy       = "read"
  capabilities = ["submit-job", "read-job", "list-jobs", "parse-job", "host-volume-create", "host-volume-read", "host-volume-delete", "host-volume-write"]
}

node {
  policy = "read"
}

agent {
  policy = "read"
}
