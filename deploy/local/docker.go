package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"bivouac.dev/bivouac/deploy"
)

// DockerReachable reports whether the user may use a running Docker daemon.
func DockerReachable(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").Run() == nil
}

// BuildImage builds the image of deploy/docker/Dockerfile with a static sandbox-agent binary.
// It pulls nothing. The tag must not be latest, because Nomad would try to pull it.
func BuildImage(ctx context.Context, agentBinary, tag string) error {
	dir, err := os.MkdirTemp("", "bivouac-image-")
	if err != nil {
		return fmt.Errorf("building image %s: %w", tag, err)
	}
	defer os.RemoveAll(dir)
	dockerfile, err := deploy.Files.ReadFile("docker/Dockerfile")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "Dockerfile"), dockerfile, 0o600)
	}
	if err == nil {
		err = copyFile(filepath.Join(dir, "sandbox-agent"), agentBinary)
	}
	if err != nil {
		return fmt.Errorf("building image %s: %w", tag, err)
	}
	cmd := exec.CommandContext(ctx, "docker", "build", "--quiet", "--tag", tag, dir)
	// Every daemon has the classic builder; not every one has buildx.
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building image %s: %w\n%s", tag, err, out)
	}
	return nil
}

// BuildSandboxImage builds the image of deploy/image with a static sandbox-agent binary, where `make
// sandbox-image` has built its base. It reports whether there is one; it never builds the base.
func BuildSandboxImage(ctx context.Context, agentBinary, tag string) (bool, error) {
	root, err := Root()
	if err != nil {
		return false, fmt.Errorf("building image %s: %w", tag, err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "deploy/image/build.sh"), "--cached", agentBinary, tag)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == noBase:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("building image %s: %w\n%s", tag, err, out)
	}
	return true, nil
}

// noBase is the exit code of build.sh --cached where the base was not built.
const noBase = 3

// RemoveImage removes an image and its tag. A missing image, or a missing Docker, is no error.
func RemoveImage(tag string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if !DockerReachable(ctx) || exec.CommandContext(ctx, "docker", "image", "inspect", tag).Run() != nil {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "docker", "rmi", "-f", tag).CombinedOutput(); err != nil {
		return fmt.Errorf("removing image %s: %w: %s", tag, err, out)
	}
	return nil
}

// copyFile makes an executable copy.
func copyFile(to, from string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o755)
}
