// Package fsm is what the whole cluster believes: the nouns, the commands that
// change them, and the store they change, which is the same on every node at
// the same index of the Raft log.
//
// The rules of the house:
//
//   - Apply is a function of the log alone. It reads no clock, no chance and no
//     environment; time, ids and the actor travel in the Command. A test reads
//     the source for it.
//   - A stored object is never changed. It is copied, the copy is changed and
//     stored in its place; Views share the pointers.
//   - Every field has one writer: requests write what is desired, observations
//     write Status.
//   - A command checks everything before it writes anything, so that an error
//     leaves nothing behind in the transaction it shares with others.
//   - Rules of one object are in Validate, before the log; rules that need the
//     state are in the apply function.
//   - Secret values never come here, only a SecretRef.
//   - What limits bound is counted as rows are put and dropped, never by looking
//     at all of them.
//
// Adding a command: its name in command.go, a row of commandTable, its body, Validate and apply
// function in <noun>_commands.go, a script in testdata/commands. The tests name what is missing.
package fsm
