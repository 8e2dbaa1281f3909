// Package scheduler makes the world outside the cluster match what the
// cluster believes. The leader runs one Scheduler per term: it compares each
// sandbox in the store with what the backend (a Runner) has, takes at most one
// step at a time for a sandbox, asks the agent server in it whether it is up,
// and proposes what it observed. It also carries start tasks to their end and
// has unreferenced secrets destroyed.
//
// It is level-triggered: every pass starts from the newest view and the newest
// picture of the job, never from the event that caused the pass, so events may
// be lost, repeated or late. Plan decides and is pure; steps.go acts;
// observe.go listens.
//
// It promises: at most one live job for a sandbox; no job or workspace of ours
// without a sandbox; nothing touched that is not provably ours; no
// transitional state without a deadline; a reason in words for every ERROR. It
// never writes the store except through Cluster.Propose, and handles secret
// values only to hand them to an agent server.
package scheduler
