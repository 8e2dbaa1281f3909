// Package nomad runs sandboxes as Nomad jobs. It implements scheduler.Backend and scheduler.Logs
// with the few calls of Nomad's API that they need.
//
// A sandbox is one service job, "sandbox-<id>", with one group and one task, and one dynamic host
// volume of the same name, which holds the workspace. The job is pinned to the volume's client.
// Jobs carry the ids of cluster and sandbox and the sandbox's birth in their meta. Volumes carry
// the cluster's id and the birth in constraints that are always true. A job or volume without our
// cluster's id is never touched.
//
// Nomad puts a volume on the first client that may have it, so this package chooses the client
// with the most room. A sandbox that found no room there may move as long as it was never placed.
//
// Registering, reverting and stopping all enforce the job's modify index (or version), so a late
// call of a deposed leader fails. The task reads the sandbox's key from Vault with its own
// workload identity; no job definition has it.
//
// The ACL token and the certificates for Nomad are read again when their files change.
package nomad
