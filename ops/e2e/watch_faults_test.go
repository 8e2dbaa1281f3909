package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// smallDisk mounts a small file system for the data of the first node and returns its path.
func smallDisk(t *testing.T) (point string, dataDir func(node string) string) {
	t.Helper()
	testcluster.Need(t, "mount", os.Geteuid() == 0)
	dir := t.TempDir()
	point = filepath.Join(dir, "small")
	return point, func(node string) string {
		if _, err := os.Stat(point); err == nil {
			return filepath.Join(dir, node)
		}
		mountTmpfs(t, point, 1600)
		return filepath.Join(point, "data")
	}
}

// slowFaults causes what takes a minute or more to fire, or what is not mended. small is the
// file system of the first node's data.
func (w watched) slowFaults(f *testcluster.Cluster, small, backups string) {
	w.awaits("BivouacErrorBudgetBurnsSlowly", true) // of what faults did
	w.fullDisk(small)
	w.nearLimit(f)
	w.shortCertificate(f)
	w.slowLog(f)
	w.lag(f)
	w.leftovers(f)

	for range 8 {
		leader := f.Leader(w)
		if err := leader.Do(http.MethodPut, "/api/v1/operator/transfer-leader", map[string]any{}, nil); err != nil {
			w.Log(err)
		}
	}
	w.awaits("BivouacLeaderUnstable", true)

	for range 6 {
		f.Nodes[0].StartSandbox(w, "broken")
	}
	w.awaits("BivouacSandboxesFail", true)

	// A file where the folder was: no backup can be written.
	w.must(errors.Join(os.RemoveAll(backups), os.WriteFile(backups, nil, 0o600)))
	w.awaits("BivouacBackupTooOld", true)

	// All tokens end with the login method, and nobody gets another.
	w.must(f.Vault.Do(w.Context(), http.MethodDelete, "sys/auth/approle", nil, nil))
	w.awaits("BivouacVaultLoginFails", true)
}

func (w watched) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// fullDisk leaves less than a gigabyte.
func (w watched) fullDisk(small string) {
	ballast, err := os.Create(filepath.Join(small, "ballast"))
	w.must(err)
	defer ballast.Close()
	w.must(syscall.Fallocate(int(ballast.Fd()), 0, 0, 1000<<20))
	w.awaits("BivouacDiskFillsUp", true)
	w.must(os.Remove(ballast.Name()))
}

// nearLimit gives the state the smallest limit and fills it.
func (w watched) nearLimit(f *testcluster.Cluster) {
	padding := strings.Repeat("x", 4000)
	for i, size := 0, 0.0; size < 0.9*fsm.MinStateBytes; i++ {
		leader := f.Leader(w)
		c := testcluster.Client{Base: leader.Base, Key: leader.NewKey(w, fmt.Sprint("keeper-", i))}
		c.Sure(w, http.MethodPost, "/api/settings",
			map[string]any{"agent": padding, "git_user_name": padding, "git_user_email": padding}, nil)
		values, err := leader.Metrics(w.Context())
		w.must(err)
		size = values["bivouac_state_bytes"]
	}
	f.Leader(w).Sure(w, http.MethodPut, "/api/v1/operator/config",
		map[string]any{"limits": map[string]any{"installation": map[string]any{"state_bytes": fsm.MinStateBytes}}}, nil)
	w.awaits("BivouacStateNearLimit", true)
	f.Leader(w).Sure(w, http.MethodPut, "/api/v1/operator/config", map[string]any{}, nil)
	w.awaits("BivouacStateNearLimit", false)
}

// shortCertificate gives a follower a certificate that ends soon.
func (w watched) shortCertificate(f *testcluster.Cluster) {
	files := f.Followers(w)[0].TLS
	former, err := peernet.ReadCertificates(files.CertFile)
	w.must(err)
	pair, err := peernet.CAIssuer(files.CAFile, filepath.Join(filepath.Dir(files.CAFile), "ca-key.pem"),
		2*time.Hour)(w.Context(), former[0])
	w.must(err)
	w.must(peernet.WritePair(files, pair, func(path string, data []byte, mode os.FileMode) error {
		return errors.Join(os.WriteFile(path+".new", data, mode), os.Rename(path+".new", path))
	}))
	w.awaits("BivouacCertificateExpires", true)
}

// write writes from several clients until stop.
func (w watched) write(f *testcluster.Cluster, clients int) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var all sync.WaitGroup
	for i := range clients {
		n := f.Nodes[i%len(f.Nodes)]
		c := testcluster.Client{
			Base: n.Base,
			Key:  f.Leader(w).NewKey(w, fmt.Sprintf("writer-%d-%d", i, time.Now().UnixNano())),
		}
		all.Go(func() {
			for value := 0; ctx.Err() == nil; value++ {
				if _, err := c.Send(ctx, http.MethodPost, "/api/settings",
					map[string]any{"language": fmt.Sprint(value)}); err != nil {
					testcluster.Pause(ctx, 20*time.Millisecond)
				}
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// slowLog stops a follower again and again, as a virtual machine does that gets no time: many of
// its writes to the log take long.
func (w watched) slowLog(f *testcluster.Cluster) {
	stop := w.write(f, 3)
	pid := f.Followers(w)[0].Pid()
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // the follower runs until the end of the test
			testcluster.Pause(context.WithoutCancel(ctx), 350*time.Millisecond)
			_ = syscall.Kill(pid, syscall.SIGCONT)
			testcluster.Pause(ctx, 40*time.Millisecond)
		}
	}()
	w.awaits("BivouacLogWritesSlow", true)
	cancel()
	<-done
	stop()
	w.awaits("BivouacLogWritesSlow", false)
}

// lag lets a follower miss thousands of entries.
func (w watched) lag(f *testcluster.Cluster) {
	late := f.Followers(w)[0]
	late.Kill()
	stop := w.write(f, 6)
	w.awaits("BivouacMemberLags", true)
	stop()
	late.Start(w)
	late.Ready(w)
	w.awaits("BivouacMemberLags", false)
}

// leftovers are what no sandbox owns, more removals than an hour allows, and marks that are gone.
func (w watched) leftovers(f *testcluster.Cluster) {
	var ids []string
	for range 3 {
		id := f.Nodes[0].StartSandbox(w, "raw")
		f.Nodes[0].AwaitSandbox(w, id, "RUNNING")
		ids = append(ids, id)
	}
	var job struct{ Meta map[string]string }
	w.must(f.Nomad.Do(w.Context(), http.MethodGet, "job/sandbox-"+ids[0], nil, &job))
	const stranger = "astrangerstrangerstrang"
	f.AddForeign(w, "sandbox-"+stranger, fmt.Sprintf("bivouac_cluster = %q", job.Meta["bivouac_cluster"]),
		fmt.Sprintf("bivouac_sandbox = %q", stranger))
	for _, id := range ids {
		f.Nodes[0].Change(w, id, "pause")
		f.Nodes[0].AwaitSandbox(w, id, "PAUSED")
	}
	f.Leader(w).Sure(w, http.MethodPut, "/api/v1/operator/config",
		map[string]any{"policy": map[string]any{"delete_paused_after": "1s"}}, nil)
	w.awaits("BivouacRemovalsBraked", true)
	f.Leader(w).Sure(w, http.MethodPut, "/api/v1/operator/config", map[string]any{}, nil)
	w.awaits("BivouacOrphans", true)

	var variables []struct{ Path string }
	w.must(f.Nomad.Do(w.Context(), http.MethodGet, "vars?prefix=bivouac/", nil, &variables))
	for _, v := range variables {
		w.must(f.Nomad.Do(w.Context(), http.MethodDelete, "var/"+v.Path, nil, nil))
	}
	f.Leader(w).Sure(w, http.MethodPut, "/api/v1/operator/transfer-leader", map[string]any{}, nil)
	w.awaits("BivouacHold", true)
	f.Leader(w).Operate(w, "operator", "hold", "release", "--yes")
	w.awaits("BivouacHold", false)
}
