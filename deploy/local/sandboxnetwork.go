package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"bivouac.dev/bivouac/deploy"
)

// SandboxNetwork is a docker network of sandboxes with the firewall's rules for it, as
// deploy/nomad/sandbox-network.sh makes it.
type SandboxNetwork struct {
	// Name is docker's name of it, Bridge its interface: at most 15 characters.
	Name, Bridge string
	// Nodes are the addresses that reach the sandboxes' ports; none means all. Refuse are
	// networks that sandboxes don't reach. API are the addresses, with ports, where they reach the nodes
	// all the same.
	Nodes, Refuse, API []string
}

// SandboxNetworkPossible returns why this process can't make such a network here, nil if it can.
func SandboxNetworkPossible(ctx context.Context) error {
	switch {
	case os.Geteuid() != 0:
		return errors.New("the firewall's rules need root")
	case !DockerReachable(ctx):
		return errors.New("docker is not reachable")
	}
	if out, err := shell(ctx, nil, "iptables -w -S DOCKER-USER").CombinedOutput(); err != nil {
		return fmt.Errorf("iptables has no chain of docker's: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Up makes the network and its rules, or mends them.
func (n SandboxNetwork) Up(ctx context.Context) error { return n.run(ctx, "up") }

// gatewayOf returns this machine's address in a docker network.
func gatewayOf(ctx context.Context, network string) (string, error) {
	out, err := exec.CommandContext(ctx, "docker", "network", "inspect", "--format",
		"{{range .IPAM.Config}}{{.Gateway}} {{end}}", network).Output()
	if fields := strings.Fields(string(out)); err == nil && len(fields) > 0 {
		return fields[0], nil
	}
	return "", fmt.Errorf("the docker network %s has no gateway address: %w", network, err)
}

// Check returns what is missing of it.
func (n SandboxNetwork) Check(ctx context.Context) error { return n.run(ctx, "check") }

// Down removes both. It fails while a container is in the network.
func (n SandboxNetwork) Down() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return n.run(ctx, "down")
}

func (n SandboxNetwork) run(ctx context.Context, command string) error {
	script, err := deploy.Files.ReadFile("nomad/sandbox-network.sh")
	if err != nil {
		return fmt.Errorf("sandbox network %s: %w", n.Name, err)
	}
	env := []string{"NETWORK=" + n.Name, "BRIDGE=" + n.Bridge, "NODES=" + strings.Join(n.Nodes, " "),
		"REFUSE=" + strings.Join(n.Refuse, " "),
		"API=" + strings.Join(n.API, " ")}
	if out, err := shell(ctx, env, string(script), command).CombinedOutput(); err != nil {
		return fmt.Errorf("sandbox network %s: %s: %w: %s", n.Name, command, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// shell makes a command of sh. The programs of root are often not on a user's path.
func shell(ctx context.Context, env []string, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", script, "sandbox-network"}, args...)...)
	cmd.Env = append(append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin"), env...)
	return cmd
}
