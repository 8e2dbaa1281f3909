// Package fsm is the replicated state of the cluster: the nouns, the commands that change them, and
// the store, which is the same on every node at the same index of the Raft log.
//
// The project rules:
//
//   - Apply is a function of the log alone. It reads no clock, no random source and no
//     environment; time, ids and the user come in the Command. A test checks the source.
//   - A stored object is never changed. Code copies it, changes the copy and stores that;
//     Views share the pointers.
//   - Every field has one writer: requests write what is desired, observations write Status.
//   - A command checks everything before it writes anything, so that an error leaves nothing
//     behind in the transaction it shares with others.
//   - Rules of a single object are in Validate, before the log. Rules that need the state are
//     in the apply function.
//   - The state holds no secret values, only a SecretRef.
//   - Usage that limits bound is counted as rows are put and dropped, never by a scan.
//
// To add a command: its name in command.go, a row of commandTable, its body, Validate and apply
// function in <noun>_commands.go, a script in testdata/commands. The tests name what is missing.
package fsm
