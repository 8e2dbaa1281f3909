// Package secrets stores secret values: in Vault (KV version 2, with AppRole), or in an encrypted
// file for the embedded default. The rest of Bivouac holds references, each a path and a version.
//
// It guarantees:
//
//   - A version never changes once it is written.
//   - A failed write leaves nothing that a reference names.
//   - No value, token or secret id appears in its errors, logs or metrics.
//   - An unreachable store differs from a missing secret (ErrUnavailable, ErrNotFound). It is
//     reported within bounded time, and the connection recovers without an operator.
//
// The order of steps makes it safe. The secret is written first; the command that is committed next
// makes its version current. A version that was written and never committed is unreferenced.
// Collect deletes it after a grace period that is longer than a command may take to be committed.
// It can be undeleted until Collect destroys it. Collect changes only versions whose birth the
// caller recognises as its own.
package secrets
