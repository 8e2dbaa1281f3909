// Package nomadtest has in-memory fakes of the scheduler's dependencies for tests: a Runner
// that behaves like Nomad and can fail like it, the agent servers in its sandboxes, a secret
// store and a cluster of one node. It runs in fake time (testing/synctest) and in real time.
package nomadtest
