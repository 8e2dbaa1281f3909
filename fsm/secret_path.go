package fsm

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

// Members of a sandbox's entry in the secret store.
const (
	// MemberKey is the session key, MemberSecretKey the key with which the agent server encrypts its
	// data.
	MemberKey       = "key"
	MemberSecretKey = "secret_key"
)

// MemberEventKey is the member of EventKeyPath's entry: 32 bytes in base64.
const MemberEventKey = "key"

// SandboxKeyPath is the path of a sandbox's keys in the secret store.
func SandboxKeyPath(sandbox string) string { return SandboxSecrets(sandbox) + "session" }

// SandboxInitPath is the path of what initialises a member of a warm pool.
func SandboxInitPath(sandbox string) string { return SandboxSecrets(sandbox) + "init" }

// SandboxSecrets is the prefix of a sandbox's entries. Only the sandbox's job may read them.
func SandboxSecrets(sandbox string) string { return "sandboxes/" + sandbox + "/" }

// SettingPath is the path of one secret setting of a user.
func SettingPath(user, name string) string { return userSecrets(user) + "settings/" + name }

// ProviderPath is the path of a user's token of a git provider.
func ProviderPath(user string, t ProviderType) string {
	return userSecrets(user) + "providers/" + string(t)
}

// maxPlainName is the longest name, in bytes, that a path holds: the longest one below
// VersionCharacters, whose path does not change. Of a longer one the path holds the hash, because
// the secret store bounds a path.
const maxPlainName = MaxName

// CustomSecretPath is the path of a custom secret of a user. The name may hold any character.
func CustomSecretPath(user, name string) string {
	segment := base64.RawURLEncoding.EncodeToString([]byte(name))
	if len(name) > maxPlainName {
		sum := sha256.Sum256([]byte(name))
		segment = "sha256." + hex.EncodeToString(sum[:]) // base64 has no dot
	}
	return userSecrets(user) + "custom/" + segment
}

// StartTaskPath is the path of the secrets of a start task.
func StartTaskPath(user, task string) string { return userSecrets(user) + "start_tasks/" + task }

// EventKeyPath is the path of the key that seals a user's events.
func EventKeyPath(user string) string { return userSecrets(user) + "events" }

func userSecrets(user string) string { return "users/" + user + "/" }
