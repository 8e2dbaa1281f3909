# What a Nomad task may read with its workload identity: the entries of its own
# job. It is `nomad setup vault`'s policy without the right to list what others
# have.
#
#   MOUNT     where KV version 2 is mounted
#   ACCESSOR  the accessor of the JWT auth method Nomad logs in with
#             (vault auth list)

path "MOUNT/data/{{identity.entity.aliases.ACCESSOR.metadata.nomad_namespace}}/{{identity.entity.aliases.ACCESSOR.metadata.nomad_job_id}}/*" {
  capabilities = ["read"]
}

path "MOUNT/data/{{identity.entity.aliases.ACCESSOR.metadata.nomad_namespace}}/{{identity.entity.aliases.ACCESSOR.metadata.nomad_job_id}}" {
  capabilities = ["read"]
}
