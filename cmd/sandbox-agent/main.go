// Command sandbox-agent is the agent server that runs inside a sandbox where
// no other image is given (api-contract.md, Part C). It is static and needs
// nothing beside it; see package agentserver for what it serves.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"bivouac.dev/bivouac/cmd/sandbox-agent/agentserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agentserver.Main(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
