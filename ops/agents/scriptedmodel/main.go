// Scriptedmodel is a scripted model server for demonstrations: it answers the vendors' protocols
// from a file. The server is scheduler/agent/modeltest.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

const long = `Scriptedmodel answers OpenAI's chat completions and Responses at <URL>/v1 from a script.
It prints its URL as the first line and serves until it is stopped. GET /requests, with no key,
shows what it was asked.

A script is JSON:

  {
    "key": "sk-demo",                  the key that requests must bear; leave it out to accept all
    "models": ["scripted"],            the models there are; leave it out to accept all
    "stories": [{
      "when": {                        what a request must have; regular expressions
        "user": "fix the test",        in the last user message
        "system": "directory (?P<dir>\\S+)",
        "any": "...", "model": "...",  in any message; in the model's name
        "tool": "terminal"             a tool that is offered; "-" when none is
      },
      "answers": [                     answer n follows n assistant messages after the last user message
        {"reasoning": "...", "text": "...",
         "calls": [{"name": "terminal", "arguments": {"command": "cd ${dir} && make test"}}]},
        {"fault": {"kind": "rate_limit", "times": 2, "retry_after_s": 1}, "text": "Done."}
      ]
    }]
  }

The last answer is repeated. Faults: hangup, slow and slow_chunks (delay_ms), unauthorized,
rate_limit and unavailable (retry_after_s), no_quota, error, bad_request, context_length,
content_filter, garbage, truncated, cut, stream_error, empty.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		stop()
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:           "scriptedmodel [flags] SCRIPT.json",
		Short:         "A model server that answers from a script",
		Long:          long,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: false,
		RunE: func(c *cobra.Command, args []string) error {
			return serve(c.Context(), c.OutOrStdout(), address, args[0])
		},
	}
	c.Flags().StringVar(&address, "address", "127.0.0.1:0", "loopback address to serve at; port 0 takes a free one")
	return c
}

func serve(ctx context.Context, out io.Writer, address, path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	script, err := modeltest.ParseScript(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	server, err := modeltest.Start(address, script)
	if err != nil {
		return err
	}
	defer server.Down()
	fmt.Fprintln(out, server.URL())
	<-ctx.Done()
	return nil
}
