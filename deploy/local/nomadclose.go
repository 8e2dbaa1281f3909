package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Close stops the agent and everything that it runs. It purges the jobs while the agent
// responds. Then it finds leftovers by the data directory (the agent may have been killed) and
// removes executors, tasks, containers, cgroups and mounts. The files stay. It may be called again.
func (n *Nomad) Close() error {
	defer n.ports.release()
	var errs []error
	if n.proc != nil && n.proc.Alive() {
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
		defer cancel()
		// The sweep handles what a failure here leaves.
		_ = n.purgeJobs(ctx)
		errs = append(errs, n.proc.Stop(10*time.Second))
	}
	errs = append(errs, sweep(n.Dir))
	return errors.Join(errs...)
}

// purgeJobs stops every job and waits until no task runs. It uses stale reads, because an agent
// that has just started may have no leader.
func (n *Nomad) purgeJobs(ctx context.Context) error {
	var jobs []struct{ ID, Namespace string }
	if err := n.Do(ctx, http.MethodGet, "jobs?namespace=*&stale", nil, &jobs); err != nil {
		return err
	}
	for _, j := range jobs {
		path := "job/" + url.PathEscape(j.ID) + "?purge=true&namespace=" + url.QueryEscape(j.Namespace)
		if err := n.Do(ctx, http.MethodDelete, path, nil, nil); err != nil {
			return err
		}
	}
	return until(ctx, n.proc, "the end of all tasks", func(ctx context.Context) error {
		var allocs []struct{ ID, ClientStatus string }
		if err := n.Do(ctx, http.MethodGet, "allocations?namespace=*&stale", nil, &allocs); err != nil {
			return err
		}
		for _, a := range allocs {
			if a.ClientStatus == "running" || a.ClientStatus == "pending" {
				return fmt.Errorf("allocation %s is %s", a.ID, a.ClientStatus)
			}
		}
		return nil
	})
}

// sweep removes the leftovers of a Nomad with that directory: first containers, then executors
// and tasks, then cgroups and mounts.
func sweep(dir string) error {
	data := filepath.Join(dir, "data")
	var errs []error
	errs = append(errs, removeContainers(data))
	for range 50 {
		pids := processesOf(data)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("ending a task of nomad (pid %d): %w", pid, err))
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.Join(append(errs, removeCgroups(data, "/sys/fs/cgroup"), unmountBelow(data))...)
}

// removeCgroups removes the cgroups of the data directory's allocations. Their processes have ended;
// the kernel needs a moment to see it.
func removeCgroups(data, root string) error {
	allocs, _ := filepath.Glob(filepath.Join(data, "alloc", "*-*-*-*-*"))
	var errs []error
	for _, alloc := range allocs {
		// cgroups v1, v1 with reserved cores, v2.
		for _, parent := range []string{"*/nomad", "cpuset/nomad/*", "nomad.slice/*"} {
			groups, _ := filepath.Glob(filepath.Join(root, parent, filepath.Base(alloc)+".*"))
			for _, group := range groups {
				err := os.Remove(group)
				for range 50 {
					if !errors.Is(err, unix.EBUSY) {
						break
					}
					time.Sleep(20 * time.Millisecond)
					err = os.Remove(group)
				}
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// processesOf finds the processes that a Nomad leaves when it ends: tasks (their
// NOMAD_ALLOC_DIR is in the data directory), and helpers, which are the same program with
// another argument and the agent's working directory.
func processesOf(data string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || startTime(pid) == "" {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		task := bytes.Contains(append([]byte{0}, env...), []byte("\x00NOMAD_ALLOC_DIR="+data+"/"))
		if task || helperOf(e.Name(), filepath.Dir(data)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// helperOf reports whether a process is a helper of the Nomad agent that ran in that directory.
func helperOf(pid, dir string) bool {
	raw, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	args := strings.Split(string(raw), "\x00")
	if len(args) < 2 || !slices.Contains([]string{"executor", "logmon", "docker_logger"}, args[1]) {
		return false
	}
	cwd, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
	return err == nil && cwd == dir || args[1] == "executor" && strings.Contains(string(raw), dir+"/")
}

// removeContainers removes Nomad's containers with a mount below data.
func removeContainers(data string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if !DockerReachable(ctx) {
		return nil
	}
	out, err := exec.CommandContext(ctx, "docker", "ps", "-aq", "--filter", "label=com.hashicorp.nomad.alloc_id").Output()
	if err != nil {
		return fmt.Errorf("listing nomad's containers: %w", err)
	}
	var errs []error
	for _, id := range strings.Fields(string(out)) {
		raw, err := exec.CommandContext(ctx, "docker", "inspect", "--format", "{{json .Mounts}}", id).Output()
		if err != nil {
			continue // removed meanwhile
		}
		var mounts []struct{ Source string }
		if err := json.Unmarshal(raw, &mounts); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, m := range mounts {
			if strings.HasPrefix(m.Source, data+"/") {
				errs = append(errs, exec.CommandContext(ctx, "docker", "rm", "-f", id).Run())
				break
			}
		}
	}
	return errors.Join(errs...)
}

// unmountBelow detaches the mounts below a directory, the deepest first, so that the directory
// can be deleted.
func unmountBelow(dir string) error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			points = append(points, f[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points)))
	var errs []error
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// Freeze stops the agent and its tasks with SIGSTOP, like a machine that hangs. Thaw continues
// them.
func (n *Nomad) Freeze() error { return n.signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (n *Nomad) Thaw() error { return n.signal(syscall.SIGCONT) }

func (n *Nomad) signal(s syscall.Signal) error {
	var errs []error
	for _, pid := range append(processesOf(filepath.Join(n.Dir, "data")), n.proc.pid) {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("sending %s to pid %d: %w", s, pid, err))
		}
	}
	return errors.Join(errs...)
}

// WipeServer simulates the loss of the servers' state: it kills the agent, removes its server's
// data, and starts it at the same address. The client's data stays, and tasks run until the
// client learns that the server does not know them. As after Wipe, call Vault.TrustNomad again.
func (n *Nomad) WipeServer(ctx context.Context) error {
	err := n.Kill()
	if err == nil {
		err = os.RemoveAll(filepath.Join(n.Dir, "data", "server"))
	}
	if err != nil {
		return fmt.Errorf("wiping nomad's server: %w", err)
	}
	return n.Start(ctx)
}

// Crash simulates a crash of the machine: it kills the agent and its tasks. Start starts it
// with the data on its disk.
func (n *Nomad) Crash() error { return errors.Join(n.Kill(), sweep(n.Dir)) }

// Wipe simulates the loss of everything: it kills the agent and its tasks, removes its data,
// and starts it at the same address. The keys are new: call Vault.TrustNomad again.
func (n *Nomad) Wipe(ctx context.Context) error {
	err := errors.Join(n.Kill(), sweep(n.Dir))
	if err == nil {
		err = os.RemoveAll(filepath.Join(n.Dir, "data"))
	}
	if err != nil {
		return fmt.Errorf("wiping nomad: %w", err)
	}
	return n.Start(ctx)
}
