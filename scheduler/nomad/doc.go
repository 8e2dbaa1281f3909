// Package nomad runs sandboxes as Nomad jobs. It implements scheduler.Runner
// with the few calls of Nomad's API that this needs.
//
// A sandbox is one service job, "sandbox-<id>", with one group and one task,
// and one dynamic host volume of the same name, which holds the workspace. The
// job is pinned to its client. Jobs carry the cluster's and the sandbox's id in
// their meta, volumes the cluster's id in a constraint that is always true; what
// does not carry our cluster's id is never touched.
//
// Nomad puts volumes on the first client that may have them, so the client with
// the most room is chosen here; a sandbox that found no room there may move as
// long as it was never placed.
//
// Registering, reverting and stopping all enforce the job's modify index (or
// version), so that the late call of a deposed leader loses. The sandbox's key
// is read from Vault by the task's own workload identity; it is in no job
// definition.
package nomad
