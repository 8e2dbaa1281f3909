package main

import (
	"github.com/spf13/cobra"
)

// completionCommand prints the scripts that the packages install. The library's own command
// answers wrong usage with the code of a failure.
func (p *program) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the script that completes commands in a shell",
		Long: `Print the script that completes bivouac's commands and flags in a shell. The packages
install it for all three shells.`,
		Example: `  source <(bivouac completion bash)
  bivouac completion zsh > "${fpath[1]}/_bivouac"
  bivouac completion fish > ~/.config/fish/completions/bivouac.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(p.stdout, true)
			case "zsh":
				return root.GenZshCompletion(p.stdout)
			default:
				return root.GenFishCompletion(p.stdout, true)
			}
		},
	}
}
