spec "one" {
  driver       = "podman" # want: driver: "podman" must be one of "docker", "raw_exec", "process"
  working_dir  = "/workspace"
  cpu          = 0 # want: cpu: must be between 1 and 1000000
  memory       = "512" # want: memory: must be a whole number
  pool         = 5000 # want: pool: must be between 0 and 1000
  policy {
    idle_timeout = "0s" # want: idle_timeout: must be between 1s and
  }
  cap_add      = ["SYS_ADMIN"] # want: cap_add: member 1: "SYS_ADMIN" must be one of "AUDIT_WRITE", "CHOWN"
  privileged   = true # want: An argument named "privileged" is not expected here
  env          = { "A B" = "x" } # want: env: "A B" is not the name of an environment variable
  args         = ["${port.vscode}", "${image}"] # want: This object does not have an attribute named "vscode" # want: There is no variable named "image"
  port "agent" {} # want: "agent" is not a port name
}
