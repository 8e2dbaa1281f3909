// Package storm lets clients live with sandboxes on the real stack while a
// nemesis kills, stops and seals what that stack is made of, and says
// afterwards whether each sandbox is what its client was told it would be, and
// whether each message its client was told of is there, and no more than once
// for each request that may have delivered it. The drills (ops/drills) run it; it needs no access to the packages it tests.
package storm
