package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// StartNode starts a node of the stack in dir that has ended, and returns when it is ready. Down
// stops it like the others. A node that runs is left alone.
func StartNode(ctx context.Context, dir, name string, progress io.Writer) (*StackNode, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := ReadStack(dir)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(s.Nodes, func(n StackNode) bool { return n.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("the stack has no node %q; it has %s to %s", name, nodeName(0), nodeName(stackNodes-1))
	}
	node := &s.Nodes[i]
	config := resolved(filepath.Join(dir, name, "node.hcl"))
	if slices.ContainsFunc(serversOf(dir), func(p serverProcess) bool { return p.config == config }) {
		fmt.Fprintln(progress, name, "runs already")
		return node, nil
	}
	p, err := startServer(dir, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = until(ctx, p, "being ready", func(ctx context.Context) error {
		return call{method: http.MethodGet, url: node.HTTP + "/ready"}.do(ctx)
	})
	if err != nil {
		return nil, err // it goes on: a stack without a leader may get one
	}
	node.Pid = p.pid
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return node, writeFile(filepath.Join(dir, "stack.json"), append(raw, '\n'), 0o600)
}

// startServer starts the server of a node's folder.
func startServer(dir, name string) (*Process, error) {
	return Command{
		Name: "bivouac", Dir: filepath.Join(dir, name), Detach: true, Path: filepath.Join(dir, "bin", "bivouac"),
		Args: []string{"server", "--config", filepath.Join(dir, name, "node.hcl")},
	}.Start()
}

// serverProcess is a running `bivouac server` of a stack.
type serverProcess struct {
	Process
	config string
}

// serversOf finds the servers of a stack, also those that were started by hand.
func serversOf(dir string) (list []serverProcess) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	program := resolved(filepath.Join(dir, "bin", "bivouac"))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// The link of a program that was replaced ends with " (deleted)".
		if exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe")); err != nil ||
			strings.TrimSuffix(exe, " (deleted)") != program {
			continue
		}
		raw, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(bytes.TrimRight(raw, "\x00")), "\x00")
		started := startTime(pid)
		if len(args) < 2 || args[1] != "server" || started == "" {
			continue
		}
		cwd, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd"))
		p := serverProcess{Process: Process{name: "bivouac", pid: pid, started: started}, config: configOf(args[2:], cwd)}
		p.pidFile = filepath.Join(filepath.Dir(p.config), "bivouac.pid")
		p.log = filepath.Join(filepath.Dir(p.config), "bivouac.log")
		list = append(list, p)
	}
	return list
}

// configOf returns the file that a server's arguments name, relative to its working directory.
func configOf(args []string, cwd string) string {
	for i, a := range args {
		file, joined := strings.CutPrefix(strings.TrimPrefix(a, "-"), "-config=")
		switch {
		case joined:
		case strings.TrimLeft(a, "-") == "config" && i+1 < len(args):
			file = args[i+1]
		default:
			continue
		}
		if !filepath.IsAbs(file) {
			file = filepath.Join(cwd, file)
		}
		return resolved(file)
	}
	return ""
}

// resolved returns a path without symbolic links, as the kernel shows it.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return filepath.Clean(path)
}

// stopServers stops the servers of a stack together.
func stopServers(dir string) error {
	servers := serversOf(dir)
	failed := make(chan error, len(servers))
	for i := range servers {
		go func() { failed <- servers[i].Stop(stopNode) }()
	}
	var errs []error
	for range servers {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}
