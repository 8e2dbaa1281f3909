// Command stack runs the real stack on this machine, for `make stack`,
// `make stack-down` and `make tools`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"bivouac.dev/bivouac/deploy/local"
)

const usage = `usage: stack [-dir DIR] up|down|status|tools
       stack [-dir DIR] start NODE

  up      start Vault, Nomad, three Bivouac nodes and, when installed, HAProxy
  down    stop all of it and the sandboxes, and remove DIR
  start   start one node again that has ended: node-1, node-2 or node-3
  status  say where everything is
  tools   build Nomad and Vault into the cache, if they are missing
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("stack", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	dir := flags.String("dir", "", "where its files are; default .stack in the tree")
	if err := flags.Parse(args); err != nil || flags.NArg() != wanted(flags.Arg(0)) {
		if err == nil {
			flags.Usage()
		}
		return 2
	}
	if *dir == "" {
		root, err := local.Root()
		if err != nil {
			fmt.Fprintln(stderr, "stack:", err)
			return 1
		}
		*dir = filepath.Join(root, ".stack")
	}
	var err error
	switch flags.Arg(0) {
	case "up":
		err = up(ctx, *dir, stdout)
	case "start":
		err = start(ctx, *dir, flags.Arg(1), stdout)
	case "down":
		err = local.Down(*dir, stdout)
	case "status":
		var s *local.Stack
		if s, err = local.ReadStack(*dir); err == nil {
			print(stdout, s)
		}
	case "tools":
		err = tools(ctx, stdout)
	default:
		flags.Usage()
		return 2
	}
	if err != nil {
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(stderr, "stack:", err)
		return 1
	}
	return 0
}

func tools(ctx context.Context, stdout io.Writer) error {
	for _, name := range []string{"nomad", "vault"} {
		path, err := local.Tool(ctx, name, stdout)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%-6s %s\n", name, path)
	}
	return nil
}

// wanted is how many arguments a command has, itself included.
func wanted(command string) int {
	if command == "start" {
		return 2
	}
	return 1
}

func start(ctx context.Context, dir, name string, stdout io.Writer) error {
	n, err := local.StartNode(ctx, dir, name, stdout)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%-10s %s  (pid %d, log %s)\n", n.Name, n.HTTP, n.Pid, n.Log)
	return nil
}

func up(ctx context.Context, dir string, stdout io.Writer) error {
	s, err := local.Up(ctx, dir, stdout)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	print(stdout, s)
	return nil
}

// print prints the addresses of all parts.
func print(w io.Writer, s *local.Stack) {
	fmt.Fprintf(w, "Vault      %s  (root token and unseal key: %s)\n", s.Vault, filepath.Join(s.Dir, "vault", "keys.json"))
	fmt.Fprintf(w, "Nomad      %s  (management token: %s)\n", s.Nomad, s.NomadTokenFile)
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "%-10s %s  (pid %d, log %s)\n", n.Name, n.HTTP, n.Pid, n.Log)
	}
	if s.Balancer != "" {
		fmt.Fprintf(w, "HAProxy    %s\n", s.Balancer)
	}
	fmt.Fprintf(w, "API key    %s\n", s.APIKeyFile)
	if len(s.Nodes) > 0 {
		fmt.Fprintf(w, "\nTry:\n  curl -s -H \"X-Session-API-Key: $(cat %s)\" %s/api/v1/sandbox-specs/search\n",
			s.APIKeyFile, s.Address())
	}
	fmt.Fprintf(w, "Stop it with: make stack-down\n")
}
