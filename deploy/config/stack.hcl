# A node of `make stack`. The words in capitals are filled in by deploy/local.
node_name        = "NODE_NAME"
data_dir         = "data"
bootstrap_expect = 3
retry_join       = [PEERS]

http {
  address = "HTTP_ADDRESS"
}

peer {
  address   = "PEER_ADDRESS"
  ca_file   = "../tls/ca.pem"
  cert_file = "../tls/NODE_NAME.pem"
  key_file  = "../tls/NODE_NAME-key.pem"
  # The node renews its certificate. With the CA's key it could make any node's: see node.hcl.
  ca_key_file = "../tls/ca-key.pem"
}

nomad {
  address        = "NOMAD_URL"
  namespace      = "NAMESPACE"
  node_pool      = "NODE_POOL"
  docker_network = "DOCKER_NETWORK"
  token_file     = "../nomad-token"
}

vault {
  address        = "VAULT_URL"
  role_id_file   = "../approle/role-id"
  secret_id_file = "../approle/secret-id"
}

sandboxes {
  api_urls = [API_URLS]
}

llm {
  # A model server on this machine is asked, too.
  hosts = ["vendors", "localhost"]
}

limits {
  trusted_proxies = ["127.0.0.1/32"]
}

log {
  level  = "info"
  format = "text"
}
