spec "agents" {
  driver      = "raw_exec"
  isolation   = "none"
  command     = "/usr/local/bin/sandbox-agent"
  working_dir = "project"
  agents = [
    { id = "opencode" },
    {
      id              = "mine", display_name = "Mine", command = "my-agent", args = ["acp", "--model={{llm_model}}"],
      env             = { MY_HOME = "{{data_dir}}" }, session_mode = "{{ask?ask:auto}}", model = "big",
      env_from_secret = { LICENCE = "MY_LICENCE" }
    },
  ]
  allow_agent_command = true
  port "AGENT_SERVER" {}
}
