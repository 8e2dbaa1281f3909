package agentserver

import (
	"context"
	"fmt"
	"io"
	"time"

	"bivouac.dev/bivouac/scheduler/archive"
)

// workspaceUsage is printed for wrong arguments.
const workspaceUsage = `Usage: sandbox-agent workspace wait DURATION
       sandbox-agent workspace export DIR
       sandbox-agent workspace import DIR

What a leader runs beside a workspace, to copy or move it: wait does nothing for a
while, export writes the directory to standard output, and import makes an empty
directory's content of standard input.
`

// workspaceMain runs the subcommand workspace. It returns the exit code, as Main does.
func workspaceMain(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprint(stderr, workspaceUsage)
		return 2
	}
	var err error
	switch args[0] {
	case "wait":
		var d time.Duration
		if d, err = time.ParseDuration(args[1]); err == nil {
			select {
			case <-ctx.Done():
			case <-time.After(d):
			}
		}
	case "export":
		err = archive.Export(ctx, args[1], stdin, stdout, archive.DefaultLimits())
	case "import":
		err = archive.Import(ctx, args[1], stdin, archive.DefaultLimits())
	default:
		fmt.Fprint(stderr, workspaceUsage)
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, err.Error())
		return 1
	}
	return 0
}
