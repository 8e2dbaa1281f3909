package main

import (
	"errors"
	"fmt"
)

// The exit codes of the program; see doc.go.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// Those of a run; see runCommand.
	exitLimit       = 3
	exitRejected    = 4
	exitInterrupted = 130
)

// usageError marks an error that the caller can correct: a flag, an argument or a file. The
// exit code is exitUsage.
type usageError struct{ err error }

// Error implements error.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *usageError) Unwrap() error { return e.err }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// exitCode returns the exit code for a command's error.
func exitCode(err error) int {
	var usage *usageError
	var status exitStatus
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitFailed
}
