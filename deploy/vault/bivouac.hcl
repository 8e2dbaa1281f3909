# What a Bivouac node may do in Vault; its AppRole carries this policy.
#
#   MOUNT            where KV version 2 is mounted            (vault { mount })
#   PREFIX           Bivouac's own folder in it               (vault { prefix })
#   NOMAD_NAMESPACE  the Nomad namespace sandboxes run in     (nomad { namespace }); not PREFIX
#
#   sed -e s/MOUNT/secret/ -e s/PREFIX/bivouac/ -e s/NOMAD_NAMESPACE/sandboxes/ bivouac.hcl |
#     vault policy write bivouac -
#   vault auth enable approle
#   vault write auth/approle/role/bivouac token_policies=bivouac token_period=1h \
#     secret_id_ttl=720h secret_id_num_uses=0 secret_id_bound_cidrs=10.0.0.0/24
#   vault read -field=role_id auth/approle/role/bivouac/role-id
#   vault write -f -field=secret_id auth/approle/role/bivouac/secret-id   # one for each node
#
# A secret id that is copied is of use for 30 days, and only from the nodes' network.
# A node with an AppRole of its own renews it where secret-id.hcl lets it. Else write a
# new one to its secret_id_file before: it is read at once, without a restart. A node
# that runs renews its token and needs none; one that starts with a secret id that has
# ended can't log in. Each login is one use: a bound on uses would lock out a node that
# restarts often.
#
# A node that has Vault's PKI renew its certificate needs pki.hcl too.
#
# Vault's default policy, which every token has, lets a node look up, renew and
# revoke its own token, and ask what it may do (sys/capabilities-self). A node
# logs at its login what is missing here.

# Settings, provider tokens, custom secrets, hand-overs of start tasks, and
# PREFIX/marker: which cluster works below PREFIX, and how far it has come. A node writes
# an entry's metadata first, so its data are never created, only updated.
path "MOUNT/data/PREFIX/*" {
  capabilities = ["update", "read"]
}
# What nothing refers to is deleted so that it can be undeleted, and destroyed
# vault { secret_retention } later. A node that may not undelete deletes nothing.
path "MOUNT/delete/PREFIX/*" {
  capabilities = ["update"]
}
path "MOUNT/undelete/PREFIX/*" {
  capabilities = ["update"]
}
path "MOUNT/destroy/PREFIX/*" {
  capabilities = ["update"]
}
path "MOUNT/metadata/PREFIX/*" {
  capabilities = ["create", "update", "read", "list", "delete"]
}

# The sandboxes' own keys lie where Nomad's workload identity lets the job
# sandbox-<id>, and no other, read them (nomad-workloads.hcl).
path "MOUNT/data/NOMAD_NAMESPACE/sandbox-*" {
  capabilities = ["update", "read"]
}
path "MOUNT/delete/NOMAD_NAMESPACE/sandbox-*" {
  capabilities = ["update"]
}
path "MOUNT/undelete/NOMAD_NAMESPACE/sandbox-*" {
  capabilities = ["update"]
}
path "MOUNT/destroy/NOMAD_NAMESPACE/sandbox-*" {
  capabilities = ["update"]
}
path "MOUNT/metadata/NOMAD_NAMESPACE/sandbox-*" {
  capabilities = ["create", "update", "read", "list", "delete"]
}

# Names only, to find the entries of sandboxes that are gone.
path "MOUNT/metadata/NOMAD_NAMESPACE/" {
  capabilities = ["list"]
}

# A delete_version_after on the mount would take secrets away that are in use;
# nodes look and say so.
path "MOUNT/config" {
  capabilities = ["read"]
}

# When the node's secret id ends. Whoever asks must have it already. Where AppRole is
# mounted elsewhere (vault { auth_mount }), that mount.
path "auth/approle/role/+/secret-id/lookup" {
  capabilities = ["update"]
}
