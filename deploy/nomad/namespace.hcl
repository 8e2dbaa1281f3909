# The namespace of the sandboxes, and nothing else: nomad { namespace } of the nodes'
# configuration.
#
#   nomad namespace apply namespace.hcl
name        = "sandboxes"
description = "the sandboxes of Bivouac"

capabilities {
  # Nomad refuses a job with another driver, whatever its token: raw_exec would give it
  # the machine.
  enabled_task_drivers = ["docker"]
}
