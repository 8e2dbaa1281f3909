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

limits {
  body_size           = 1 # want: body_size: must be between 1024 and 67108864
  snapshot_size       = 1 # want: snapshot_size: must be between 1048576 and 1099511627776
  rate_per_second     = -1 # want: rate_per_second: must be between 0 and 1e+06
  connections         = 1 # want: connections: must be between 64 and 1048576
  trusted_proxies     = ["proxy"] # want: trusted_proxies: member 1: "proxy" must be an address or a range
}
