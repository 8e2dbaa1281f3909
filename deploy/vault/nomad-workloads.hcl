# What a Nomad task may read with its workload identity: the entries of its own
# job. It is `nomad setup vault`'s policy without the entry at the job's own name,
# and without the right to list what others have.
#
#   MOUNT     where KV version 2 is mounted
#   ACCESSOR  the accessor of the JWT auth method Nomad logs in with
#             (vault auth list)
#
# Whoever may submit a job "sandbox-<id>" in the namespace reads that sandbox's key.
# So give each cluster a namespace of its own, in which nobody else submits jobs
# (deploy/nomad/bivouac.policy.hcl), and bind the role to it:
#
#   nomad namespace apply sandboxes
#   vault write auth/jwt-nomad/role/nomad-workloads role_type=jwt bound_audiences=vault.io \
#     user_claim=/nomad_job_id user_claim_json_pointer=true token_type=service token_period=30m \
#     token_policies=nomad-workloads bound_claims='{"nomad_namespace":"sandboxes"}' \
#     claim_mappings='{"nomad_namespace":"nomad_namespace","nomad_job_id":"nomad_job_id","nomad_task":"nomad_task"}'
#
# Clusters that share a Nomad need a role each: nomad { vault_role }.

path "MOUNT/data/{{identity.entity.aliases.ACCESSOR.metadata.nomad_namespace}}/{{identity.entity.aliases.ACCESSOR.metadata.nomad_job_id}}/*" {
  capabilities = ["read"]
}
