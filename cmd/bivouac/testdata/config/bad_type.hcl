node_name = "n1" # want: retry_join is required unless bootstrap_expect is 1
data_dir  = "/var/lib/bivouac"
bootstrap_expect = "3" # want: bootstrap_expect: must be a whole number
retry_join       = "10.1.0.12:8441" # want: retry_join: must be a list of strings

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
