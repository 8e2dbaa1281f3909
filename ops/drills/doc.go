// Package drills runs the built programs as their users do: the README's
// session as it is written, and the real stack with real kills. Its tests need
// no access to the packages; they speak HTTP and read files.
package drills
