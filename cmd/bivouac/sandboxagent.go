package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
)

// sandboxAgentName is the hidden command that this binary runs in the sandboxes of `bivouac
// dev`, so that one file is enough to install.
const sandboxAgentName = "sandbox-agent"

// sandboxAgentCommand passes the command line to the agent server, which parses its own flags.
func (p *program) sandboxAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use:                sandboxAgentName,
		Short:              "Run the agent server of a sandbox",
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			environ, err := config.TakeEnvironment()
			if err != nil {
				fmt.Fprintln(p.stderr, "sandbox-agent: the keys stay readable in this process: "+err.Error())
			}
			if code := agentserver.Main(cmd.Context(), args, environ, p.stdout, p.stderr); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

// exitStatus ends the program with an exit code and prints nothing more.
type exitStatus int

// Error implements error.
func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }
