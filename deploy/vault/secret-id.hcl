# What a node may do in Vault to renew its own secret id, beside bivouac.hcl. Without this policy an
# operator writes the next one into secret_id_file before 30 days are over.
#
#   ROLE   the node's AppRole, which no other node has; below another mount than
#          auth/approle where vault { auth_mount } says so
#
#   sed -e s/ROLE/bivouac-node-1/ secret-id.hcl | vault policy write bivouac-secret-id-node-1 -
#
# A node renews nothing while the role has no secret_id_bound_cidrs: those of the role hold for
# what the node makes, too, so a secret id or a token that was copied makes none that is of
# use elsewhere. It writes secret_id_file, whose folder its user must own.
#
# Who made which secret id is in Vault's audit log, and in the node's: "secret id renewed" with
# both accessors. To lock a node out: vault write -f auth/approle/role/ROLE/secret-id-accessor/destroy
# secret_id_accessor=..., or delete the role.

path "auth/approle/role/ROLE" {
  capabilities = ["read"]
}
# It chooses nothing: neither addresses, nor a life, nor the secret id itself.
path "auth/approle/role/ROLE/secret-id" {
  capabilities      = ["update"]
  denied_parameters = { "*" = [] }
}
path "auth/approle/role/ROLE/secret-id-accessor/destroy" {
  capabilities = ["update"]
}
