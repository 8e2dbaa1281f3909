spec "docker" { # want: spec "docker": a port "AGENT_SERVER" is required # want: spec "docker": driver "docker" needs an image # want: spec "docker": working_dir must be absolute
  driver      = "docker"
  working_dir = "project"
}
spec "raw" { # want: spec "raw": image is for the driver "docker" only # want: spec "raw": driver "raw_exec" needs a command # want: spec "raw": working_dir must be relative # want: spec "raw": cap_add, runtime and readonly_rootfs are for the driver "docker" only # want: spec "raw": the driver raw_exec gives a sandbox no isolation from the machine: write isolation = "none"
  driver      = "raw_exec"
  cap_add     = ["CHOWN"]
  image       = "x"
  working_dir = "/project"
  port "AGENT_SERVER" {}
}
spec "raw" { # want: the spec "raw" is there already, on line 5
  driver = "raw_exec"
}
spec "no spaces" { # want: "no spaces" is not a spec id
  driver      = "process"
  command     = "sandbox-agent"
  working_dir = "project"
  port "AGENT_SERVER" {}
  port "AGENT_SERVER" {} # want: the port "AGENT_SERVER" is there already
}
spec "root" { # want: spec "root": working_dir must be a directory below the workspace
  driver      = "docker"
  image       = "agent:1"
  working_dir = "/workspace/"
  volume {
    path = "/workspace"
  }
  port "AGENT_SERVER" {}
}
spec "outside" { # want: spec "outside": working_dir must be a directory below the workspace
  driver      = "docker"
  image       = "agent:1"
  working_dir = "/workspaces/project"
  volume {
    path = "/workspace"
  }
  port "AGENT_SERVER" {}
}
spec "dot" { # want: spec "dot": working_dir must be a directory below the workspace
  driver      = "raw_exec"
  isolation   = "none"
  command     = "/agent"
  working_dir = "./"
  port "AGENT_SERVER" {}
}
spec "above" { # want: spec "above": working_dir must be a directory below the workspace
  driver      = "raw_exec"
  isolation   = "none"
  command     = "/agent"
  working_dir = "project/../../x"
  port "AGENT_SERVER" {}
}
spec "open" { # want: spec "open": network_mode = "host" gives a sandbox no isolation from the machine: write isolation = "none"
  driver       = "docker"
  image        = "agent:1"
  working_dir  = "/workspace/project"
  network_mode = "host"
  isolation    = "standard"
  volume {
    path = "/workspace"
  }
  port "AGENT_SERVER" {}
}
spec "closed" { # want: spec "closed": isolation = "none" is for the drivers raw_exec and process
  driver      = "docker"
  image       = "agent:1"
  working_dir = "/workspace/project"
  isolation   = "none"
  volume {
    path = "/workspace"
  }
  port "AGENT_SERVER" {}
}
