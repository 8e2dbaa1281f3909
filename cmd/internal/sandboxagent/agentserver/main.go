package agentserver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
	"bivouac.dev/bivouac/httpapi/decode"
)

// Main runs the program: args are the flags without the program's name, environ has the settings.
// It runs until ctx ends and everything it started has ended. It returns the exit code: 0 after a
// clean stop, 1 after a failure, 2 for invalid flags. cmd/sandbox-agent and the hidden subcommand
// of cmd/bivouac call it.
func Main(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "workspace" {
		return workspaceMain(ctx, args[1:], os.Stdin, stdout, stderr)
	}
	fs := flag.NewFlagSet("sandbox-agent", flag.ContinueOnError)
	fs.SetOutput(stderr)
	host := fs.String("host", "", "address to bind (default: all with a session key, 127.0.0.1 without)")
	port := fs.Int("port", config.DefaultPort, "port to bind, 0 for a free one")
	version := fs.Bool("version", false, "print the version and exit")
	fs.Usage = func() {
		fmt.Fprint(stderr, "Usage: sandbox-agent [flags]\n\nThe agent server inside a Bivouac sandbox. "+
			"Settings come from the environment:\n"+
			"OH_SESSION_API_KEYS_0, OH_CONVERSATIONS_PATH, OH_BASH_EVENTS_DIR, OH_SECRET_KEY,\nOH_DEFERRED_INIT, "+
			"OH_ALLOW_CORS_ORIGINS_0.\n\nFlags:\n")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "sandbox-agent: unexpected argument %q\n", fs.Arg(0))
		return 2
	}
	if *version {
		fmt.Fprintln(stdout, "sandbox-agent "+buildVersion())
		return 0
	}
	cfg, err := config.FromEnv(environ)
	if err != nil {
		fmt.Fprintln(stderr, "sandbox-agent: "+err.Error())
		return 1
	}
	cfg.Host, cfg.Port, cfg.Version = *host, *port, buildVersion()
	cfg.Logger = slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{ReplaceAttr: decode.LogAttr}))
	if err := serve(ctx, cfg); err != nil {
		fmt.Fprintln(stderr, "sandbox-agent: "+err.Error())
		return 1
	}
	return 0
}

func serve(ctx context.Context, cfg config.Config) error {
	if err := cfg.UseToolsUser(); err != nil {
		return err
	}
	if cfg.Deferred {
		srv, err := NewDeferred(cfg)
		if err != nil {
			return err
		}
		return srv.Run(ctx)
	}
	srv, err := New(cfg)
	if err != nil {
		return err
	}
	return srv.Run(ctx)
}

// buildVersion is the module's version, or the revision it was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
