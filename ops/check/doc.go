// Package check holds the project rules that a compiler does not check: the import directions,
// determinism of the replicated state machine, the conventions for names, files and tests, and
// that every cited heading, decision, document, link and file exists. It parses the files
// itself: a check that runs `go list` is served from the test cache and passes after a
// forbidden import was added.
//
// `make check` and `make test` run it. The test of each rule also runs it on a small offending
// tree, so a rule that can't fail is detected.
package check
