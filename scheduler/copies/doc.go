// Package copies keeps copies of workspaces in a directory or in S3. A copy has a manifest, which
// names every file and the pieces of its content, and data: what no earlier copy of this workspace
// had. A copy is valid once the replicated state names it, with the checksum of its manifest.
package copies
