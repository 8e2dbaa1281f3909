package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// main maps flags and signals to program.run. The first SIGINT or SIGTERM ends the context, each
// later one the process, or what a command waits for with program.again. SIGHUP reads the configuration again.
func main() {
	ctx, cancel := context.WithCancel(context.Background())
	again := make(chan struct{})
	ends := make(chan os.Signal, 2)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		stops(ends, cancel, again)
		fmt.Fprintln(os.Stderr, "bivouac: told twice to stop; stopped at once")
		os.Exit(exitFailed)
	}()

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

	p := &program{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, reload: reload, again: again,
	}
	os.Exit(p.run(ctx, os.Args[1:]))
}

// stops returns when the process must end: at a second signal or a later one for which nothing waits.
func stops(ends <-chan os.Signal, cancel func(), again chan<- struct{}) {
	<-ends
	cancel()
	for range ends {
		select {
		case again <- struct{}{}:
		default:
			return
		}
	}
}
