spec "warm" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  pool        = 3
  policy {
    delete_paused_after = "72h"
  }
  port "AGENT_SERVER" {}
}
