// Package e2e holds the end-to-end tests. They run the built programs as users do: the
// README's session as written, and real Nomad and Vault with real kills. They use the API
// and files instead of the packages' Go API.
package e2e
