# What a node may do in Vault's PKI to renew its own certificate, beside bivouac.hcl:
# peer { vault_pki { mount = "PKI", role = "NODE" } }.
#
#   PKI   where the engine is mounted, for nodes of one cluster only
#   NODE  the node's name, and that of its role
#
# Once, where the nodes' CA shall be Vault's. Its certificate is the nodes' ca_file:
#
#   vault secrets enable -path=PKI -max-lease-ttl=87600h pki
#   vault write -field=certificate PKI/root/generate/internal common_name="Bivouac cluster CA" \
#     key_type=ec key_bits=256 ttl=87600h > ca.pem
#
# For each node a role for its names alone, and an AppRole of its own with both
# policies: a stolen node then can renew itself, and be no other. With one AppRole for
# all of them it could be each. Names and addresses for clients (--host) go into
# allowed_domains, and need allow_ip_sans=true.
#
#   vault write PKI/roles/NODE allowed_domains=NODE.node.bivouac,server.bivouac \
#     allow_bare_domains=true allow_subdomains=false allow_localhost=false allow_ip_sans=false \
#     enforce_hostnames=true key_type=ec key_bits=256 max_ttl=720h no_store=true
#   sed -e s/PKI/pki-bivouac/ -e s/NODE/node-1/ pki.hcl | vault policy write bivouac-pki-node-1 -
#   vault write auth/approle/role/bivouac-node-1 token_policies=bivouac,bivouac-pki-node-1 \
#     token_period=1h secret_id_ttl=720h secret_id_bound_cidrs=10.0.0.11/32
#
# The first certificate is made by the operator, since the node does not run yet:
#
#   vault write -format=json PKI/issue/NODE common_name=NODE.node.bivouac \
#     alt_names=server.bivouac > node.json
#   jq -r .data.certificate node.json > node-1.pem; jq -r .data.private_key node.json > node-1-key.pem

path "PKI/sign/NODE" {
  capabilities = ["update"]
}
