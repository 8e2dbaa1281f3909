package local_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

func startVault(t *testing.T, o local.VaultOptions) *local.Vault {
	t.Helper()
	o.Dir = t.TempDir()
	v, err := local.StartVault(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func startNomad(t *testing.T, o local.NomadOptions) *local.Nomad {
	t.Helper()
	o.Dir = t.TempDir()
	n, err := local.StartNomad(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		wantNothingLeft(t, n.Dir)
	})
	return n
}

// eventually waits for a condition for at most half a minute.
func eventually(t *testing.T, what string, cond func() error) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

func TestVault_SealedStoppedKilled_KeepsItsData(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	v := startVault(t, local.VaultOptions{Durable: true})
	value := map[string]any{"data": map[string]string{"value": "kept"}}
	if err := v.Do(ctx, http.MethodPost, "secret/data/a", value, nil); err != nil {
		t.Fatal(err)
	}
	read := func() error { return v.Do(ctx, http.MethodGet, "secret/data/a", nil, nil) }

	if err := v.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	var status *local.StatusError
	if err := read(); !errors.As(err, &status) || status.Status != http.StatusServiceUnavailable {
		t.Fatalf("reading from a sealed vault: %v, want 503", err)
	}
	if err := v.Unseal(ctx); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func() error{v.Kill, v.Stop} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := read(); err == nil {
			t.Fatal("a stopped vault answers")
		}
		if err := v.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
}

// job is a job that writes its secret to a file and keeps running.
func job(id, entry, file string) string {
	return fmt.Sprintf(`
job %q {
  type = "service"
  group "g" {
    restart {
      attempts = 0
      mode = "fail"
    }
    reschedule {
      attempts = 0
      unlimited = false
    }
    task "t" {
      driver = "raw_exec"
      vault {}
      template {
        data = "KEY={{with secret \"%s\"}}{{.Data.data.key}}{{end}}"
        destination = "secrets/env"
        env = true
        error_on_missing_key = true
      }
      config {
        command = "/bin/sh"
        args = ["-c", "echo $KEY > %s; exec sleep 10000"]
      }
      resources {
        cpu = 20
        memory = 20
      }
    }
  }
}`, id, entry, file)
}

func TestNomad_TaskReadsOnlyItsOwnJobsSecrets(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	v := startVault(t, local.VaultOptions{})
	n := startNomad(t, local.NomadOptions{Vault: v})
	for _, id := range []string{"sandbox-x", "sandbox-xy"} {
		value := map[string]any{"data": map[string]string{"key": "key-of-" + id}}
		if err := v.Do(ctx, http.MethodPost, "secret/data/default/"+id+"/session", value, nil); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	own, other := filepath.Join(dir, "own"), filepath.Join(dir, "other")
	if err := n.RunHCL(ctx, job("sandbox-x", "secret/data/default/sandbox-x/session", own)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the task with its key", func() error {
		got, err := os.ReadFile(own)
		if err == nil && strings.TrimSpace(string(got)) != "key-of-sandbox-x" {
			err = fmt.Errorf("key is %q", got)
		}
		return err
	})
	// The same job reads the entry of another job whose name has the same prefix.
	if err := n.RunHCL(ctx, job("sandbox-x", "secret/data/default/sandbox-xy/session", other)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the refusal", func() error {
		var allocs []struct {
			JobVersion int
			TaskStates map[string]struct {
				Events []struct{ DisplayMessage string }
			}
		}
		if err := n.Do(ctx, http.MethodGet, "job/sandbox-x/allocations", nil, &allocs); err != nil {
			return err
		}
		for _, a := range allocs {
			for _, e := range a.TaskStates["t"].Events {
				if a.JobVersion == 1 && strings.Contains(e.DisplayMessage, "sandbox-xy") {
					return nil
				}
			}
		}
		return errors.New("no event names the entry")
	})
	if _, err := os.Stat(other); err == nil {
		t.Error("the task ran with another job's secret")
	}
}

func TestNomad_KilledAndClosed_LeavesNothing(t *testing.T) {
	t.Parallel()
	n := startNomad(t, local.NomadOptions{})
	pidFile := filepath.Join(t.TempDir(), "pid")
	spec := `job "j" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args = ["-c", "echo $$ > ` + pidFile + `; exec sleep 10000"]
      }
    }
  }
}`
	if err := n.RunHCL(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	var task string
	eventually(t, "the task", func() error {
		raw, err := os.ReadFile(pidFile)
		task = strings.TrimSpace(string(raw))
		if err == nil {
			_, err = strconv.Atoi(task)
		}
		return err
	})
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + task); err != nil {
		t.Fatal("the task died with the agent; the test shows nothing")
	}
	groups := cgroupsOf(t, task)
	if err := n.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of task "+task, func() error { // init may take a moment to reap it
		if _, err := os.Stat("/proc/" + task); err == nil {
			return errors.New("it still runs")
		}
		return nil
	})
	for _, group := range groups {
		if _, err := os.Stat(group); err == nil {
			t.Errorf("the cgroup %s is left", group)
		}
	}
}

// cgroupsOf returns the folders of the cgroups that Nomad made for the process alone.
func cgroupsOf(t *testing.T, pid string) (folders []string) {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		// "4:cpu,cpuacct:/nomad/ID.task" or "0::/nomad.slice/share.slice/ID.task.scope"
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		controller, _, _ := strings.Cut(f[1], ",")
		folder := filepath.Join("/sys/fs/cgroup", controller, f[2])
		if _, err := os.Stat(folder); err == nil && strings.Contains(f[2], "/nomad") &&
			strings.Contains(filepath.Base(folder), "-") {
			folders = append(folders, folder)
		}
	}
	t.Logf("the task's cgroups: %v", folders)
	return folders
}

func TestNomad_PolicyAllowsWhatANodeDoes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := startNomad(t, local.NomadOptions{ACL: true})
	token, err := n.NewToken(ctx)
	if err != nil {
		t.Fatal(err)
	}
	do := func(method, path string, in, out any) {
		t.Helper()
		if err := n.DoAs(ctx, token, method, path, in, out); err != nil {
			t.Error(err)
		}
	}
	var created struct{ Volume struct{ ID string } }
	do(http.MethodPut, "volume/host/create", map[string]any{"Volume": map[string]any{
		"Name": "sandbox-x", "PluginID": "mkdir",
		"RequestedCapabilities": []map[string]string{{"AccessMode": "single-node-writer", "AttachmentMode": "file-system"}},
	}}, &created)
	do(http.MethodGet, "volume/host/"+created.Volume.ID, nil, nil)
	do(http.MethodGet, "volumes?type=host", nil, nil)
	spec := map[string]any{"Job": map[string]any{
		"ID": "sandbox-x", "Name": "sandbox-x", "Type": "service", "Datacenters": []string{"*"},
		"TaskGroups": []map[string]any{{
			"Name": "g",
			"Volumes": map[string]any{
				"w": map[string]any{
					"Name":           "w",
					"Type":           "host",
					"Source":         "sandbox-x",
					"AccessMode":     "single-node-writer",
					"AttachmentMode": "file-system",
				},
			},
			"Tasks": []map[string]any{
				{"Name": "t", "Driver": "raw_exec", "Config": map[string]any{"command": "/bin/sleep", "args": []string{"1000"}}},
			},
		}},
	}}
	do(http.MethodPut, "jobs", spec, nil)
	do(http.MethodPut, "job/sandbox-x/versions/0/tag", map[string]any{"Name": "keep", "Version": 0}, nil)
	do(http.MethodDelete, "job/sandbox-x", nil, nil)
	do(http.MethodPut, "job/sandbox-x/revert", map[string]any{"JobID": "sandbox-x", "JobVersion": 0}, nil)
	do(http.MethodGet, "jobs?prefix=sandbox-&meta=true", nil, nil)
	do(http.MethodGet, "job/sandbox-x/allocations", nil, nil)
	do(http.MethodGet, "job/sandbox-x/evaluations", nil, nil)
	do(http.MethodGet, "allocations?resources=false", nil, nil)
	do(http.MethodGet, "nodes", nil, nil)
	var mark struct{ ModifyIndex uint64 }
	do(http.MethodPut, "var/bivouac/bivouac?cas=0",
		map[string]any{"Path": "bivouac/bivouac", "Items": map[string]string{"index": "1"}}, &mark)
	do(http.MethodGet, "var/bivouac/bivouac", nil, nil)
	do(http.MethodPut, fmt.Sprintf("var/bivouac/bivouac?cas=%d", mark.ModifyIndex),
		map[string]any{"Path": "bivouac/bivouac", "Items": map[string]string{"index": "2"}}, nil)
	do(http.MethodDelete, "job/sandbox-x?purge=true", nil, nil)
	eventually(t, "the deletion of the volume", func() error {
		return n.DoAs(ctx, token, http.MethodDelete, "volume/host/"+created.Volume.ID+"/delete", nil, nil)
	})
	for _, request := range []string{"GET agent/self", "GET acl/tokens", "PUT system/gc", "GET jobs?namespace=other",
		"GET operator/snapshot",
		"DELETE var/bivouac/bivouac", "GET var/other"} {
		method, path, _ := strings.Cut(request, " ")
		var status *local.StatusError
		err := n.DoAs(ctx, token, method, path, nil, nil)
		if !errors.As(err, &status) || status.Status != http.StatusForbidden {
			t.Errorf("%s: %v, want 403", request, err)
		}
	}
}
