package main

import (
	"os"
	"syscall"
	"testing"
)

// TestStops_ThirdSignal: after a second signal was handed to a command the next one ends the process.
func TestStops_ThirdSignal(t *testing.T) {
	ends, again, over := make(chan os.Signal), make(chan struct{}), make(chan struct{})
	cancelled := false
	go func() {
		defer close(over)
		stops(ends, func() { cancelled = true }, again)
	}()
	ends <- syscall.SIGINT
	handed := make(chan struct{})
	go func() {
		<-again
		close(handed)
	}()
	for range 2 { // the command may not wait yet at the second one
		select {
		case ends <- syscall.SIGINT:
		case <-over:
		}
	}
	<-over
	if !cancelled {
		t.Error("the first signal does not cancel")
	}
}
