// Command sandbox-agent is the agent server for sandboxes without another image (PROTOCOL.md,
// "Sources"). It is a static binary without dependencies; see package agentserver for its
// endpoints. As process 1 of a container it runs itself as its child and reaps orphaned
// processes, so the image needs no init.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
)

func main() {
	environ, err := config.TakeEnvironment()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox-agent: the keys stay readable in this process: "+err.Error())
	}
	if os.Getpid() == 1 {
		code, err := runAsInit(os.Args, environ)
		if err != nil {
			fmt.Fprintln(os.Stderr, "sandbox-agent: as process 1: "+err.Error())
		}
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agentserver.Main(ctx, os.Args[1:], environ, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
