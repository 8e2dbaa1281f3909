package local

import (
	"context"
	"os/exec"
	"time"
)

// DockerReachable reports whether the user may talk to a running Docker daemon.
func DockerReachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").Run() == nil
}
