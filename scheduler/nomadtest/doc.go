// Package nomadtest stands in for the scheduler's neighbours in tests: a
// Runner in memory that behaves like Nomad and can be made to fail like it, the
// agent servers in its sandboxes, a secret store and a cluster of one node. It
// runs in fake time (testing/synctest) as well as in real time.
package nomadtest
