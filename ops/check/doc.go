// Package check holds the project rules that neither a compiler nor golangci-lint checks: the import
// directions, the conventions for names, files and tests, and that every cited heading, decision,
// document, link and file exists. Its test of linters holds that golangci-lint, as it is configured,
// objects to what breaks the others. The package parses the files itself: a check that runs `go list`
// is served from the test cache and passes after a forbidden import was added.
//
// `make check` and `make test` run it. The test of each rule also runs it on a small offending
// tree, so a rule that can't fail is detected.
package check
