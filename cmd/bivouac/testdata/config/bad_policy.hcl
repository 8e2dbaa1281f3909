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

policy {
  idle_timeout        = "soon" # want: idle_timeout: "soon" is not a duration such as "30m" or "72h", nor "never"
  max_running         = 5 # want: max_running: must be a duration in quotes
  delete_paused_after = "-1h" # want: delete_paused_after: must be between 1s and 87600h0m0s, or "never"
  pause_after         = "1h" # want: An argument named "pause_after" is not expected here
}
