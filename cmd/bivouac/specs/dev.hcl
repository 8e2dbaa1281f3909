# The sandbox specs of `bivouac dev`, loaded on its first start. The first is
# the default.
spec "local" {
  driver      = "process"
  isolation   = "none"
  command     = "sandbox-agent"
  working_dir = "project"
  cpu         = 500
  memory      = 512
  port "AGENT_SERVER" {}
}
