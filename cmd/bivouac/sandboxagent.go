package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/cmd/sandbox-agent/agentserver"
)

// sandboxAgentName is the hidden command as which this binary runs inside the
// sandboxes of `bivouac dev`: one file is all there is to install.
const sandboxAgentName = "sandbox-agent"

// sandboxAgentCommand hands the command line on to the agent server, which has
// flags of its own.
func (p *program) sandboxAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use:                sandboxAgentName,
		Short:              "Run the agent server of a sandbox",
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if code := agentserver.Main(cmd.Context(), args, os.Environ(), p.stdout, p.stderr); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

// exitStatus ends the program with a code of its own; what there was to say
// has been said.
type exitStatus int

// Error implements error.
func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }
