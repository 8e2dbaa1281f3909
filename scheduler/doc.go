// Package scheduler makes the backend and the agent servers match the replicated state. The
// leader runs one Scheduler per term. It compares each sandbox in the store with what the backend
// (a Runner) has, takes at most one step at a time for a sandbox, asks its agent server whether
// it is up, and proposes what it observed. It also keeps warm pools full, enforces policies and
// collects unreferenced secrets. Package starttask runs beside it.
//
// It is level-triggered. A pass starts from the newest view and the newest observation of the
// job, never from the event that caused the pass, so events may be lost, repeated or late. Plan
// decides and is pure; steps.go carries steps out; observe.go probes.
//
// It guarantees: at most one live job for a sandbox; no job or workspace of ours without a
// sandbox; nothing is touched that is not provably ours; no transitional state without a
// deadline; a reason in words for every ERROR. It writes the store only through Cluster.Propose.
// It handles secret values only to pass them to an agent server or the secret store.
package scheduler
