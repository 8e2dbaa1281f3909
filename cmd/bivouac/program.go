package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// program is the process's environment as the commands see it. Tests run whole commands without
// a process.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	// reload receives when the operator asks to read the configuration again (SIGHUP). A nil
	// channel never receives.
	reload <-chan struct{}
	// again receives when the program is asked to stop a second time, if something waits for it then;
	// else the process ends. A nil channel never receives.
	again <-chan struct{}
}

// run runs one command line and returns the exit code. ctx ends when the program is asked to
// stop.
func (p *program) run(ctx context.Context, args []string) int {
	root := p.rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var status exitStatus
	if err != nil && !errors.As(err, &status) {
		fmt.Fprintln(p.stderr, "bivouac: "+strings.ReplaceAll(printableText(err.Error()), "\n", "\nbivouac: "))
	}
	return exitCode(err)
}

// rootCommand is the tree of commands.
func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "bivouac",
		Short: "A highly available control plane for coding-agent sandboxes",
		Long: `Bivouac keeps agent sandboxes and their conversations running on a cluster of nodes.

"bivouac dev" starts a whole cluster on this machine, with nothing to install.
"bivouac server" runs one node of a real one, on Nomad and Vault.
"bivouac status" shows how a cluster is, and what is wrong with it.

"bivouac run" gives an agent a task, and shows its work.

Exit codes: 0 done, 1 failed, 2 wrong usage; "bivouac run" has more.`,
		Example: `  bivouac dev
  bivouac server --config /etc/bivouac/node.hcl
  bivouac login
  bivouac run "Fix the failing test"`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w (see %q)", err, cmd.CommandPath()+" --help")
	})
	root.AddCommand(p.devCommand(), p.serverCommand(), p.statusCommand(), p.configCommand(), p.keysCommand(),
		p.specsCommand(), p.usersCommand(), p.sandboxesCommand(), p.conversationsCommand(), p.runCommand(),
		p.loginCommand(), p.logoutCommand(), p.uiCommand(), p.modelsCommand(),
		p.tlsCommand(), p.operatorCommand(), p.runbookCommand(), p.monitorCommand(), p.completionCommand(),
		p.versionCommand(),
		p.sandboxAgentCommand())
	usageArgs(root)
	return root
}

// usageArgs turns argument errors of cmd and its subcommands into usage errors.
func usageArgs(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w (see %q)", err, cmd.CommandPath()+" --help")
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		usageArgs(sub)
	}
}

// groupCommand makes a command that only has subcommands.
func groupCommand(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("%s needs one of its commands (see %q)", cmd.CommandPath(), cmd.CommandPath()+" --help")
		},
	}
	cmd.AddCommand(subs...)
	return cmd
}

// oneLine shortens the operating system's errors to what the reader needs: "open /x: permission
// denied" without the chain of callers.
func oneLine(err error) string {
	var perr *os.PathError
	if errors.As(err, &perr) {
		return perr.Error()
	}
	return err.Error()
}
