// Package skills reads what a project and a user tell their agents: instruction files (AGENTS.md and
// the like) and skills (PROTOCOL.md, "Skills and hooks"). It reads files only, runs nothing, and
// calls nobody: public skills, which upstream clones, are not there.
//
// The files belong to whoever wrote the repository. They are bounded, and links that lead out of the
// directory that is read are not followed.
package skills
