// Package secrets keeps secret values where they belong: in Vault (KV version
// 2, with AppRole), or in a sealed file of the embedded default. The rest of
// Bivouac holds references, a path and a version.
//
// It promises that a version, once written, never changes; that a write that
// failed left nothing anybody refers to; that no value, token or secret id is
// ever in one of its errors, logs or metrics; and that an unreachable store is
// told apart from a missing secret (ErrUnavailable, ErrNotFound), within
// bounded time, and is found again without help.
//
// The order of things makes it safe: the secret is written first, and the
// command that is then committed makes its version current. What was written
// and never committed is an unreferenced version, which Collect deletes after a
// grace period that is longer than a command may take to be committed. It can be
// undeleted until Collect destroys it, and only versions whose birth the caller
// knows as its own are touched at all.
package secrets
