package agentserver

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/scheduler/archive"
)

// workspaceUsage is printed for wrong arguments.
const workspaceUsage = `Usage: sandbox-agent workspace wait DURATION
       sandbox-agent workspace export DIR
       sandbox-agent workspace import DIR

What a leader runs beside a workspace, to copy or move it: wait does nothing for a
while, export writes the directory to standard output, and import makes an empty
directory's content of standard input. It prints a dot now and then while it writes.
`

// saysEvery is how often an import says that it is at work. The leader gives up after two minutes
// without a byte, and a disk may take longer to write what it has.
const saysEvery = 15 * time.Second

// maxSays is how often it says so without taking input: after half an hour the disk hangs, and the
// leader has others to copy.
const maxSays = 120

// atWork passes input on, and knows whether somebody waits for it. says counts the dots since it came.
type atWork struct {
	in      io.Reader
	waiting atomic.Bool
	says    atomic.Int64
}

// Read implements io.Reader.
func (a *atWork) Read(p []byte) (int, error) {
	a.waiting.Store(true)
	defer func() { a.says.Store(0); a.waiting.Store(false) }()
	return a.in.Read(p)
}

// tell prints a dot at each tick until ctx ends, unless the input is waited for: then the silence is
// that of who sends it. A disk that hangs ends the dots.
func (a *atWork) tell(ctx context.Context, ticks <-chan time.Time, out io.Writer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			if !a.waiting.Load() && a.says.Add(1) <= maxSays {
				_, _ = io.WriteString(out, ".") // a leader that is gone ends the import by itself
			}
		}
	}
}

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
		in := &atWork{in: stdin}
		ctx, cancel := context.WithCancel(ctx)
		ticks := time.NewTicker(saysEvery)
		told := make(chan struct{})
		go func() { defer close(told); in.tell(ctx, ticks.C, stdout) }()
		err = archive.Import(ctx, args[1], in, archive.DefaultLimits())
		cancel()
		<-told
		ticks.Stop()
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
