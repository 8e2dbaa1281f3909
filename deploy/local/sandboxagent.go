package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// agentVariable holds the absolute path of a built sandbox-agent. `make test` and `make e2e` set it.
const agentVariable = "BIVOUAC_SANDBOX_AGENT"

// SandboxAgent puts the agent server that tests run at out: a copy of the program that
// $BIVOUAC_SANDBOX_AGENT names, else one that it builds.
func SandboxAgent(ctx context.Context, out string) error {
	return sandboxAgent(ctx, os.Getenv(agentVariable), out)
}

func sandboxAgent(ctx context.Context, built, out string) error {
	if built == "" {
		return BuildGo(ctx, "./cmd/sandbox-agent", out)
	}
	if st, err := os.Stat(built); err != nil || !filepath.IsAbs(built) || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return fmt.Errorf("$%s is %q, which is no absolute path of a program: unset it, or run make build and name bin/sandbox-agent",
			agentVariable, built)
	}
	// A copy made by this process could not be executed while a concurrently forked child holds
	// the descriptor ("text file busy").
	if msg, err := exec.CommandContext(ctx, "cp", "--", built, out).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w: %s", built, err, msg)
	}
	return nil
}
