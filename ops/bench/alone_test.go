package bench

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// alone is Nomad without Bivouac. It runs the job that Bivouac registers, under another name,
// with its workspace and its key in Vault.
type alone struct {
	f   *testcluster.Cluster
	job map[string]any
	n   int
}

// newAlone starts a sandbox to get its job. The sandbox stays, because its workspace is used.
func newAlone(t testing.TB, f *testcluster.Cluster, spec string) *alone {
	t.Helper()
	id := f.Nodes[0].StartSandbox(t, spec)
	f.Nodes[0].AwaitSandbox(t, id, "RUNNING")
	a := &alone{f: f, job: map[string]any{}}
	if err := f.Nomad.Do(t.Context(), http.MethodGet, "job/sandbox-"+id, nil, &a.job); err != nil {
		t.Fatal(err)
	}
	return a
}

// round registers the job, stops it and reverts it. It returns how long its port took to accept
// connections after the registration and after the revert.
func (a *alone) round(t testing.TB) (start, revert time.Duration) {
	t.Helper()
	a.n++
	id := fmt.Sprintf("alone-%s-%d", a.job["ID"], a.n)
	job := maps.Clone(a.job)
	job["ID"], job["Name"] = id, id
	a.secret(t, id, job)
	begin := time.Now()
	a.do(t, http.MethodPost, "jobs", map[string]any{"Job": job}, nil)
	first := a.answers(t, id, "")
	start = time.Since(begin)
	a.do(t, http.MethodDelete, "job/"+id, nil, nil)
	until(t, "the end of "+first, func() error {
		var alloc struct{ ClientStatus string }
		a.do(t, http.MethodGet, "allocation/"+first, nil, &alloc)
		if alloc.ClientStatus != "complete" {
			return errors.New("it is " + alloc.ClientStatus)
		}
		return nil
	})
	begin = time.Now()
	a.do(t, http.MethodPost, "job/"+id+"/revert", map[string]any{"JobID": id, "JobVersion": 0}, nil)
	a.answers(t, id, first)
	revert = time.Since(begin)
	a.do(t, http.MethodDelete, "job/"+id+"?purge=true", nil, nil)
	return start, revert
}

// secret writes the key to the entry that the job's template reads; the template is changed to
// the job's own entry.
func (a *alone) secret(t testing.TB, id string, job map[string]any) {
	t.Helper()
	err := a.f.Vault.Do(t.Context(), http.MethodPost, "secret/data/default/"+id+"/session",
		map[string]any{"data": map[string]string{"key": "k", "secret_key": "s"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	groups := job["TaskGroups"].([]any)
	group := maps.Clone(groups[0].(map[string]any))
	task := maps.Clone(group["Tasks"].([]any)[0].(map[string]any))
	template := maps.Clone(task["Templates"].([]any)[0].(map[string]any))
	template["EmbeddedTmpl"] = fmt.Sprintf(
		"{{ with secret \"secret/data/default/%s/session\" -}}\nOH_SESSION_API_KEYS_0={{ .Data.data.key "+
			"| toJSON }}\n{{- end }}\n",
		id,
	)
	task["Templates"] = []any{template}
	group["Tasks"] = []any{task}
	job["TaskGroups"] = []any{group}
}

func (a *alone) do(t testing.TB, method, path string, in, out any) {
	t.Helper()
	if err := a.f.Nomad.Do(t.Context(), method, path, in, out); err != nil {
		t.Fatal(err)
	}
}

// soon asks without waiting a second for the kernel to send a connection's lost SYN again: docker
// drops those that come before a container has its network.
var soon = &http.Client{Transport: &http.Transport{
	DialContext: (&net.Dialer{Timeout: 10 * pace}).DialContext, DisableKeepAlives: true,
}}

// answers waits until the port of an allocation other than that one accepts connections, and
// returns the allocation.
func (a *alone) answers(t testing.TB, id, other string) (alloc string) {
	t.Helper()
	var port int
	var host string
	until(t, id+" answers", func() error {
		if port == 0 {
			alloc, host, port = a.placed(t, id, other)
		}
		if port == 0 {
			return errors.New("not placed")
		}
		return testcluster.Client{Base: fmt.Sprintf("http://%s:%d", host, port), HTTP: soon}.Get("/health", nil)
	})
	return alloc
}

func (a *alone) placed(t testing.TB, id, other string) (alloc, host string, port int) {
	var list []struct{ ID string }
	a.do(t, http.MethodGet, "job/"+id+"/allocations", nil, &list)
	for _, stub := range list {
		if stub.ID == other {
			continue
		}
		var full struct {
			AllocatedResources struct {
				Shared struct {
					Ports []struct {
						Value  int
						HostIP string
					}
				}
			}
		}
		a.do(t, http.MethodGet, "allocation/"+stub.ID, nil, &full)
		for _, p := range full.AllocatedResources.Shared.Ports {
			return stub.ID, p.HostIP, p.Value
		}
	}
	return "", "", 0
}
