// Package access has what the leader needs to call a sandbox's agent server: its address and its
// keys. The scheduler and the start tasks use it.
package access
