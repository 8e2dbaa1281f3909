// Command sandbox-agent is the agent server that runs inside a sandbox where
// no other image is given (api-contract.md, Part C). It is static and needs
// nothing beside it; see package agentserver for what it serves. As process 1
// of a container it runs itself as its child and reaps the orphans that come
// to process 1, so that an image needs no other init.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"bivouac.dev/bivouac/cmd/sandbox-agent/agentserver"
)

func main() {
	if os.Getpid() == 1 {
		code, err := runAsInit(os.Args, os.Environ())
		if err != nil {
			fmt.Fprintln(os.Stderr, "sandbox-agent: as process 1: "+err.Error())
		}
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agentserver.Main(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
