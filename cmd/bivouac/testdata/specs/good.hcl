# Two specs; the first is the default.
spec "ghcr.io/example/agent-server:1.44.0" {
  driver        = "docker"
  image         = "ghcr.io/example/agent-server:1.44.0"
  args          = ["--port", "${port.agent_server}"]
  working_dir   = "/workspace/project"
  env           = { LOG_JSON = true, ENV_LOG_LEVEL = 20 }
  cpu           = 1000
  memory        = 2048
  network_mode  = "bridge"
  user          = "10001"
  cap_add         = ["CHOWN", "FOWNER"]
  runtime         = "runsc"
  readonly_rootfs = true
  start_timeout = "3m"
  port "AGENT_SERVER" {
    container = 8000
  }
  port "VSCODE" {
    container = 8001
  }
  volume {
    path = "/workspace"
  }
}

spec "plain" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "/usr/local/bin/sandbox-agent"
  args        = ["--port", "${port.agent_server}", "--workspace", "${workspace}"]
  working_dir = "project"
  policy {
    idle_timeout = "never"
    max_running  = "8h"
  }
  port "AGENT_SERVER" {}
}
