// Package deploy holds the files an operator installs Bivouac with, for the
// code that sets the same things up on one machine (deploy/local) and for the
// tests: there is one copy of each.
package deploy

import "embed"

// Files is what of this folder is read by code: Vault's and Nomad's policies, the
// script of the sandboxes' network, HAProxy's configuration, the image around the
// agent server, and the configurations of `make stack`.
//
//go:embed vault/*.hcl haproxy/haproxy.cfg docker/Dockerfile config/stack*.hcl nomad/bivouac.policy.hcl nomad/*.sh
var Files embed.FS
