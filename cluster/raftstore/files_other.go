//go:build !linux

package raftstore

import (
	"math"
	"os"
)

// Bivouac's servers run on Linux; elsewhere, for development, these checks are
// left out.
func forgetCached(string) error { return nil }
func inUse(string) bool         { return false }

// Free is how many bytes this process may still write below dir; here it is not known.
func Free(string) (uint64, error) { return math.MaxUint64, nil }

func identityOf(path string) (fileIdentity, error) {
	_, err := os.Stat(path)
	return fileIdentity{}, err
}
