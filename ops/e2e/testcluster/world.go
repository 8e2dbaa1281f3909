package testcluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// Job is the part of Nomad's job list that tests use.
type Job struct {
	ID, Status     string
	Stop           bool
	JobModifyIndex uint64
}

// Alloc is the same for allocations.
type Alloc struct {
	ID, JobID, NodeID, ClientStatus, DesiredStatus string
}

// Live reports whether the allocation runs or may still start.
func (a Alloc) Live() bool {
	return a.ClientStatus == "running" || a.ClientStatus == "pending" || a.ClientStatus == "unknown"
}

// nomad reads from Nomad's API.
func (f *Cluster) nomad(path string, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return f.Nomad.Do(ctx, http.MethodGet, path, nil, out)
}

// Jobs lists every job.
func (f *Cluster) Jobs() (list []Job, err error) { return list, f.nomad("jobs", &list) }

// Allocs lists every allocation.
func (f *Cluster) Allocs() (list []Alloc, err error) { return list, f.nomad("allocations", &list) }

// Volumes lists the names of the host volumes.
func (f *Cluster) Volumes() (names []string, err error) {
	var list []struct{ Name string }
	err = f.nomad("volumes?type=host", &list)
	for _, v := range list {
		names = append(names, v.Name)
	}
	return names, err
}

// GC runs `nomad system gc`.
func (f *Cluster) GC(t testing.TB) {
	t.Helper()
	must(t, f.Nomad.Do(t.Context(), http.MethodPut, "system/gc", nil, nil))
}

// VaultEntries lists the paths of all secrets below the KV mount with a version that is neither
// deleted nor destroyed.
func (f *Cluster) VaultEntries() ([]string, error) {
	entries, err := f.vaultBelow("")
	if err != nil {
		return nil, err
	}
	var standing []string
	for _, entry := range entries {
		stands, err := f.vaultStands(entry)
		if err != nil {
			return nil, err
		}
		if stands {
			standing = append(standing, entry)
		}
	}
	return standing, nil
}

// vaultStands reports whether a version of an entry can be read.
func (f *Cluster) vaultStands(entry string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var meta struct {
		Data struct {
			Versions map[string]struct {
				DeletionTime string `json:"deletion_time"`
				Destroyed    bool
			}
		}
	}
	err := f.Vault.Do(ctx, http.MethodGet, "secret/metadata/"+entry, nil, &meta)
	var status *local.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		return false, nil // deleted after the listing
	}
	for _, v := range meta.Data.Versions {
		if v.DeletionTime == "" && !v.Destroyed {
			return true, nil
		}
	}
	return false, err
}

func (f *Cluster) vaultBelow(folder string) (entries []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var list struct{ Data struct{ Keys []string } }
	err = f.Vault.Do(ctx, http.MethodGet, "secret/metadata/"+folder+"?list=true", nil, &list)
	var status *local.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, k := range list.Data.Keys {
		if !strings.HasSuffix(k, "/") {
			entries = append(entries, path.Join(folder, k))
			continue
		}
		below, err := f.vaultBelow(path.Join(folder, k) + "/")
		if err != nil {
			return nil, err
		}
		entries = append(entries, below...)
	}
	return entries, nil
}

// AddMachine starts another Nomad client of the cluster. It ends with the test.
func (f *Cluster) AddMachine(t testing.TB) *local.Nomad {
	t.Helper()
	f.machines++
	machine, err := local.StartNomad(t.Context(), local.NomadOptions{
		Dir: filepath.Join(f.Dir, fmt.Sprintf("machine%d", f.machines+1)), Vault: f.Vault, Join: f.Nomad,
	})
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(machine.Thaw(), machine.Close())) })
	return machine
}

// Eligible sets whether Nomad places new sandboxes on a client.
func (f *Cluster) Eligible(t testing.TB, client string, eligible bool) {
	t.Helper()
	word := map[bool]string{true: "eligible", false: "ineligible"}[eligible]
	must(t, f.Nomad.Do(t.Context(), http.MethodPut, "node/"+client+"/eligibility", map[string]any{"Eligibility": word},
		nil))
}

// Foreign is another user's job that must not be touched.
type Foreign struct {
	ID    string
	index uint64
}

// AddForeign registers a job with that id that is not Bivouac's. meta are more lines of its meta block.
func (f *Cluster) AddForeign(t testing.TB, id string, meta ...string) Foreign {
	t.Helper()
	must(t, f.Nomad.RunHCL(t.Context(), fmt.Sprintf(`job %q {
  type = "service"
  meta {
    note = "not Bivouac's"
    %s
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["86400"]
      }
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}`, id, strings.Join(meta, "\n    "))))
	var job Job
	Eventually(t, "the foreign job runs", func() error {
		err := f.nomad("job/"+url.PathEscape(id), &job)
		if err == nil && job.Status != "running" {
			err = errors.New("it is " + job.Status)
		}
		return err
	})
	return Foreign{ID: id, index: job.JobModifyIndex}
}

// Expected is the expected content of Nomad and Vault.
type Expected struct {
	// Running and Paused are ids of sandboxes; there are no others.
	Running, Paused []string
	Foreign         []Foreign
	// Strays is how many keys in Vault may belong to no sandbox yet: their command never
	// arrived, and the collector deletes them later.
	Strays int
}

// Holds waits until Nomad and Vault hold what is expected, and nothing else of ours.
func (f *Cluster) Holds(t testing.TB, e Expected) {
	t.Helper()
	Eventually(t, "Nomad and Vault hold what they must", func() error { return f.Audit(e) })
}

// Audit compares Nomad and Vault with the expectation and returns all differences as one error.
func (f *Cluster) Audit(e Expected) error {
	jobs, err := f.Jobs()
	if err != nil {
		return err
	}
	allocs, err := f.Allocs()
	if err != nil {
		return err
	}
	volumes, err := f.Volumes()
	if err != nil {
		return err
	}
	entries, err := f.VaultEntries()
	if err != nil {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	live := map[string]int{}
	for _, a := range allocs {
		if a.Live() {
			live[a.JobID]++
		}
	}
	auditJobs(e, jobs, live, bad)
	known := append(slices.Clone(e.Running), e.Paused...)
	seen := map[string]int{}
	for _, name := range volumes {
		sandbox, _, _ := strings.Cut(name, ".")
		seen[sandbox]++
		if id, ours := strings.CutPrefix(sandbox, "sandbox-"); !ours || !slices.Contains(known, id) || seen[sandbox] > 1 {
			bad("volume %s should not be there", name)
		}
	}
	strays, keys := 0, map[string]bool{}
	for _, entry := range entries {
		folder, _ := path.Split(strings.TrimPrefix(entry, "default/sandbox-"))
		switch id := strings.TrimSuffix(folder, "/"); {
		case strings.Contains(entry, "/start_tasks/"):
			strays++
		case !strings.HasPrefix(entry, "default/"):
		case slices.Contains(known, id):
			keys[id] = true
		default:
			strays++
		}
	}
	if strays > e.Strays {
		bad("%d entries in Vault belong to nobody, at most %d may: %v", strays, e.Strays, entries)
	}
	for _, id := range known {
		if !keys[id] {
			bad("sandbox %s has no key in Vault", id)
		}
	}
	return errors.Join(errs...)
}

func auditJobs(e Expected, jobs []Job, live map[string]int, bad func(string, ...any)) {
	byID := map[string]Job{}
	for _, j := range jobs {
		byID[j.ID] = j
		id, ours := strings.CutPrefix(j.ID, "sandbox-")
		foreign := slices.ContainsFunc(e.Foreign, func(f Foreign) bool { return f.ID == j.ID })
		if ours && !foreign && !slices.Contains(e.Running, id) && !slices.Contains(e.Paused, id) {
			bad("job %s should not be there", j.ID)
		}
	}
	for _, f := range e.Foreign {
		if j := byID[f.ID]; j.JobModifyIndex != f.index || j.Status != "running" || live[f.ID] != 1 {
			bad("foreign job %s was touched: %+v with %d live allocations", f.ID, j, live[f.ID])
		}
	}
	for _, id := range e.Running {
		if j, there := byID["sandbox-"+id]; !there || j.Stop || live[j.ID] != 1 {
			bad("sandbox %s should run once: job %+v with %d live allocations", id, j, live["sandbox-"+id])
		}
	}
	for _, id := range e.Paused {
		if j := byID["sandbox-"+id]; j.ID != "" && !j.Stop || live["sandbox-"+id] > 0 {
			bad("sandbox %s should be stopped: job %+v with %d live allocations", id, j, live["sandbox-"+id])
		}
	}
	for id := range live {
		if _, there := byID[id]; !there {
			bad("job %s is gone and has live allocations", id)
		}
	}
}
