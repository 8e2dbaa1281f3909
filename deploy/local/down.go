package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// stopNode is how long a node may take to stop before it is killed: http { drain_delay }, 5s,
// { drain_timeout }, 30s, and twice 20s for its parts, as cmd/bivouac tells systemd.
const stopNode = 75 * time.Second

// stackParts are the folders of a stack with a program other than a node, in the order in which they
// are stopped. The nodes are stopped together.
func stackParts() (balancer, nomad, vault string) { return "haproxy", "nomad", "vault" }

// running reports whether any program of a stack in dir runs.
func running(dir string) bool {
	balancer, nomad, vault := stackParts()
	for _, part := range []string{balancer, nomad, vault} {
		if findProcess(filepath.Join(dir, part), part) != nil {
			return true
		}
	}
	return len(serversOf(dir)) > 0
}

// ReadStack reads the stack.json that Up left in dir.
func ReadStack(dir string) (*Stack, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "stack.json"))
	if err != nil {
		return nil, fmt.Errorf("reading the stack: %w", err)
	}
	s := &Stack{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("reading the stack: stack.json: %w", err)
	}
	return s, nil
}

// Down stops what Up started in dir, including the sandboxes, and removes dir and the image. A
// missing dir is no error. If something could not be stopped, the error names it and dir stays.
func Down(dir string, progress io.Writer) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(progress, "no stack is up")
		return nil
	}
	balancer, nomad, vault := stackParts()
	var errs []error
	fmt.Fprintln(progress, "stopping HAProxy and the nodes")
	errs = append(errs, findProcess(filepath.Join(dir, balancer), balancer).Stop(2*time.Second))
	errs = append(errs, stopServers(dir))

	fmt.Fprintln(progress, "stopping the sandboxes and Nomad")
	n := &Nomad{Server: Server{Dir: filepath.Join(dir, nomad), proc: findProcess(filepath.Join(dir, nomad), nomad)}}
	stack, err := ReadStack(dir)
	if err == nil {
		n.Address = stack.Nomad
		// Without the token the sandboxes are found by their directories.
		token, _ := os.ReadFile(stack.NomadTokenFile)
		n.Token = strings.TrimSpace(string(token))
	}
	errs = append(errs, n.Close())

	fmt.Fprintln(progress, "stopping Vault")
	errs = append(errs, findProcess(filepath.Join(dir, vault), vault).Stop(10*time.Second))
	if stack != nil && stack.Network != "" {
		errs = append(errs, networkOf(dir).Down())
	}
	if stack != nil && stack.Image != "" {
		errs = append(errs, RemoveImage(stack.Image))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return clear(dir)
}

// clear removes the directory of a stopped stack. It does not touch a directory that is not a
// stack's.
func clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(entries) > 0 && !isFile(filepath.Join(dir, "bin", "bivouac")) && !isFile(filepath.Join(dir, "stack.json")) {
		return fmt.Errorf("%s is not the directory of a stack; nothing is removed", dir)
	}
	if err := sweep(filepath.Join(dir, "nomad")); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
