# The docker sandbox spec, with the image of `make sandbox-image`. `make stack` uses
# it where that image was built.
spec "docker" {
  driver      = "docker"
  image       = "IMAGE"
  args        = ["--port", "${port.agent_server}"]
  working_dir = "/workspace/project"
  cpu         = 500
  # OpenCode alone takes 600 MB while it works.
  memory      = 2048

  # The image has these. Settings and starts choose one by id, beside the built-in agent.
  agents = [
    { id = "opencode" }, { id = "codex" }, { id = "claude-code" }, { id = "gemini-cli" }, { id = "qwen-code" },
  ]

  # With these the server runs commands and agents as the image's user, who can't
  # read the server's keys. Without them it is that user itself.
  user    = "0:0"
  cap_add = ["SETUID", "SETGID", "KILL", "CHOWN"]

  # Published at 127.0.0.1, the only address that the stack's Nomad client has.
  port "AGENT_SERVER" {
    container = 8000
  }
  volume {
    path = "/workspace"
  }
}
