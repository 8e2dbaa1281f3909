// Package deploy holds the files an operator installs Bivouac with, for the
// code that sets the same things up on one machine (deploy/local) and for the
// tests: there is one copy of each.
package deploy

import "embed"

// Files is this folder's configuration: vault/*.hcl.
//
//go:embed vault/*.hcl
var Files embed.FS
