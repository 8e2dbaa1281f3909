// Package apikey creates and parses API keys and compares them with what the cluster stores
// (API.md, "Authentication"). It stores no key.
package apikey
