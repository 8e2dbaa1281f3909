# A sandbox spec of `make stack` where Docker is reachable and `make sandbox-image`
# was not run. IMAGE is built there, FROM scratch.
spec "docker" {
  driver      = "docker"
  image       = "IMAGE"
  args        = ["--port", "${port.agent_server}"]
  working_dir = "/workspace/project"
  cpu         = 200
  memory      = 256

  # Published at 127.0.0.1, the only address that the stack's Nomad client has.
  port "AGENT_SERVER" {
    container = 8000
  }
  volume {
    path = "/workspace"
  }
}
