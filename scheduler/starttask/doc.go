// Package starttask runs the requests to start a conversation. The leader gives each open task a
// sandbox, waits until that is RUNNING, clones the repository, and creates the conversation on
// the agent server (PROTOCOL.md, "Start of a conversation").
//
// Each step is one command or an idempotent call, so the next leader continues a task without a
// second sandbox or conversation. The sandbox itself is the scheduler's: this package only reads
// its row. Secret values are read for one call and kept nowhere.
package starttask
