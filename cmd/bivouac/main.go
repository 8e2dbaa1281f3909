package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// main turns flags and signals into a call of program.run. The first SIGINT or
// SIGTERM ends the context; after it the signals have their default meaning
// again, so a second one ends the process at once.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)

	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	reload := make(chan struct{})
	go func() {
		for range hangup {
			select {
			case reload <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()

	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, reload: reload}
	os.Exit(p.run(ctx, os.Args[1:]))
}
