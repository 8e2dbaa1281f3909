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
  secret_retention   = "1m" # want: secret_retention: must be between 1h0m0s and 87600h0m0s
  unreferenced_grace = "1m" # want: unreferenced_grace: must be between 2m0s and 24h0m0s
}

sandboxes { # want: sandboxes: pause_grace (1m0s) must be shorter than stop_timeout (30s)
  stop_timeout = "30s"
  pause_grace  = "1m"
}
