// Package check holds the rules of the house that a compiler does not know:
// who may import whom, what may not stand in the replicated state machine,
// and how names, files and tests are kept. It reads and parses the files
// itself, because a check that shells out to `go list` is answered from the
// test cache and stays green after a forbidden import was added.
//
// `make check` and `make test` run it. Each rule has a test that shows it a
// small offending tree, so a rule that can't fail would fail.
package check
