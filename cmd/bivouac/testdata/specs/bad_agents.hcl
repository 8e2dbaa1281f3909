spec "one" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = [{ id = "mine" }] # want: agents: agent 1: the agent "mine" needs a command: only opencode, codex
  port "AGENT_SERVER" {}
}
spec "two" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = [{ id = "codex" }, { id = "opencode", args = ["{{llm-model}}"] }] # want: agents: agent 2: the agent "opencode": there is no placeholder {{llm-model}}
  port "AGENT_SERVER" {}
}
spec "three" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = [{ id = "../codex" }] # want: agents: agent 1: id: "../codex" is not an agent id
  port "AGENT_SERVER" {}
}
spec "four" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = [{ id = "codex", cmd = "x" }] # want: agents: agent 1: there is no member "cmd"
  port "AGENT_SERVER" {}
}
spec "five" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = [{ id = "codex" }, { id = "codex" }] # want: agents: the agent "codex" is there twice
  port "AGENT_SERVER" {}
}
spec "six" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = ["codex"] # want: agents: agent 1: must be an object such as { id = "opencode" }
  port "AGENT_SERVER" {}
}
spec "seven" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = [{ id = "custom" }] # want: agents: agent 1: id: the agent id "custom" has a meaning of its own
  port "AGENT_SERVER" {}
}
spec "eight" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  agents      = [{ command = "x" }] # want: agents: agent 1: id is missing
  allow_agent_command = "yes" # want: allow_agent_command: must be true or false
  port "AGENT_SERVER" {}
}
