// Package workload generates the load of the end-to-end tests. A generator makes clients of the
// nodes, counts their requests, and remembers every answer that no client should get. What the
// clients do is a profile.
//
//   - Recorded: clients of all nodes record each request for package lincheck.
//   - Actors: clients use sandboxes on the real stack. Afterwards each sandbox must be as
//     acknowledged to its client, and each acknowledged message must be there, at most once per
//     request that may have delivered it.
//   - Load: thousands of users at a share of the cluster's maximum. Every response is checked,
//     memory stays flat, and all nodes have the same state.
package workload
