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

nomad { # want: nomad: cert_file and key_file go together
  address   = "http://127.0.0.1:4646"
  cert_file = "nomad.pem"
  lost_after = "1s" # want: lost_after: must be between 1m0s and 720h0m0s
}

vault {
  address        = "https://vault.example.org:8200"
  role_id        = "bivouac"
  secret_id_file = "secret-id"
}
