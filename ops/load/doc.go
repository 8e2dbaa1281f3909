// Package load keeps a cluster at work: it seeds the data of thousands of users,
// measures how much the cluster bears, and then sends a share of that for as
// long as wanted, looking all the time whether every answer is right, whether
// memory stays flat, whether anybody was elected without a reason, and whether
// all nodes have the same state. ops/drills runs it (`make soak DURATION=1h`).
package load
