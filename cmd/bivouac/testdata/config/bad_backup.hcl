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

backup { # want: "dir" is required
  interval = "1s" # want: interval: must be between 10s and 720h0m0s
  retain   = 0    # want: retain: must be between 1 and 10000
}
