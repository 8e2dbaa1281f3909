node_name = "n1"
data_dir  = "/var/lib/bivouac"
retry_join = ["10.1.0.12:8441"]

http {
  address = "127.0.0.1:8440"
}

peer {
  address   = "10.1.0.11:8441"
  ca_file   = "ca.pem"
  cert_file = "n1.pem"
  key_file  = "n1-key.pem"
}

nomad {
  address = "https://nomad.example.org:4646"
}

vault {
  address        = "https://vault.example.org:8200"
  role_id        = "bivouac"
  secret_id_file = "secret-id"
}

sandboxes {
  start_timeout = "10ms" # want: start_timeout: must be between 1s and 1h0m0s
  stop_timeout  = "10ms" # want: stop_timeout: must be between 1s and 1h0m0s
  url           = "{address}:{port}" # want: url: "{address}:{port}" must be a URL
  domain        = "*.Example.org" # want: domain: "*.Example.org" must be a lower-case domain
  public_url    = "https://example.org/x" # want: public_url: "https://example.org/x" must have nothing beside
  wake          = "no" # want: wake: must be true or false
}
