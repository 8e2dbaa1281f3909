# The sandbox specs of `bivouac dev`, loaded on its first start. The first is
# the default.
spec "local" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  cpu         = 500
  memory      = 512

  # Agents that are on this machine's PATH, and whatever else the user names.
  agents = [
    { id = "opencode" }, { id = "codex" }, { id = "claude-code" }, { id = "gemini-cli" }, { id = "qwen-code" },
  ]
  allow_agent_command = true

  port "AGENT_SERVER" {}
}
