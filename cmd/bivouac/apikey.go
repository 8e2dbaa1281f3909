package main

import (
	"crypto/rand"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
)

// newAPIKey makes a key. The program shows its value once and does not store it.
func newAPIKey() (apikey.Key, error) { return apikey.New(rand.Reader) }

// bootstrapBody is the body of the command that issues the cluster's first key, an operator's.
func bootstrapBody(key apikey.Key, user, name string) *fsm.APIKeyCreateBody {
	return &fsm.APIKeyCreateBody{
		Lookup: key.Lookup, Hash: key.Hash, Name: name, UserID: user, Operator: true, Bootstrap: true,
	}
}
