package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// initFailed is the exit code when the agent server can't be started.
const initFailed = 126

// runAsInit is process 1. It starts this program as its child, forwards signals, reaps all
// children, and exits with the agent server's exit code (128 plus the signal's number if a
// signal ended it). It starts no other child, so no os/exec wait loses its process. When it
// exits, the kernel ends all remaining processes.
func runAsInit(args, environ []string) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2)
	self, err := os.Executable()
	if err != nil {
		return initFailed, fmt.Errorf("finding this program: %w", err)
	}
	child, err := syscall.ForkExec(self, args, &syscall.ProcAttr{Env: environ, Files: []uintptr{0, 1, 2}})
	if err != nil {
		return initFailed, fmt.Errorf("starting the agent server: %w", err)
	}
	go func() {
		for s := range signals {
			if n, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(child, n) // an error means it has ended
			}
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return initFailed, fmt.Errorf("waiting for the agent server: %w", err)
		case pid == child && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == child && status.Exited():
			return status.ExitStatus(), nil
		}
	}
}
