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
  user {
    running_sandboxes = -1 # want: running_sandboxes: must be between 0 and
    starts_per_minute = 100000 # want: starts_per_minute: must be between 0 and 10000
    cpu               = "many" # want: cpu: must be a whole number
    disk              = 5 # want: An argument named "disk" is not expected here
  }
  installation "all" { # want: Extraneous label for installation
  }
  on_limit = "wait" # want: on_limit: "wait" must be one of "refuse", "pause_oldest"
}
