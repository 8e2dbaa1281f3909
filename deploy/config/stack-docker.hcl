# A sandbox spec of `make stack` where Docker is reachable. IMAGE is built
# there, FROM scratch.
spec "docker" {
  driver      = "docker"
  image       = "IMAGE"
  args        = ["--port", "${port.agent_server}"]
  working_dir = "/workspace/project"
  cpu         = 200
  memory      = 256

  # Reached at 127.0.0.1 like the rest of the stack.
  network_mode = "host"

  port "AGENT_SERVER" {}
  volume {
    path = "/workspace"
  }
}
