package main

import (
	"crypto/rand"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
)

// newAPIKey makes a key. Its value is shown once and kept nowhere but in its
// owner's hands.
func newAPIKey() (httpapi.APIKey, error) { return httpapi.NewAPIKey(rand.Reader) }

// bootstrapBody is the body of the command that issues the first key of a
// cluster, an operator's.
func bootstrapBody(key httpapi.APIKey, user, name string) *fsm.APIKeyCreateBody {
	return &fsm.APIKeyCreateBody{
		Lookup: key.Lookup, Hash: key.Hash, Name: name, UserID: user, Operator: true, Bootstrap: true,
	}
}
