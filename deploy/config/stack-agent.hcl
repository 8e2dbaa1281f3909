# A sandbox spec of `make stack` that needs nothing but Nomad.
spec "agent" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "AGENT_BINARY"
  args        = ["--host", "127.0.0.1", "--port", "${port.agent_server}"]
  working_dir = "project"
  cpu         = 200
  memory      = 256
  port "AGENT_SERVER" {}
}
