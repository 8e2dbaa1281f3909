package main

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestStops_ThirdSignal: after a second signal was handed to a command the next one ends the process.
func TestStops_ThirdSignal(t *testing.T) {
	ends, again, over := make(chan os.Signal, 3), make(chan struct{}, 1), make(chan struct{})
	for range cap(ends) {
		ends <- syscall.SIGINT
	}
	cancelled := false
	go func() {
		defer close(over)
		stops(ends, func() { cancelled = true }, again)
	}()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("the third signal does nothing")
	}
	if !cancelled || len(again) != 1 {
		t.Errorf("cancelled: %v, handed to a command: %d", cancelled, len(again))
	}
}
