package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/ops/e2e/apifuzz"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// seedOf returns the seed of a random test, BIVOUAC_SEED or a new one, and logs it.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("BIVOUAC_SEED"); given != "" {
		n, err := strconv.ParseUint(given, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("BIVOUAC_SEED=%d", seed)
	return seed
}

// devInfo is dev.json, which `bivouac dev` writes when it is ready.
type devInfo struct {
	APIKey string `json:"api_key"`
	Nodes  []struct{ Name, HTTP string }
}

// startedDev builds the program, starts `bivouac dev` in an empty folder, and returns the
// process, the folder and its dev.json.
func startedDev(t *testing.T) (dev *program, home string, info devInfo) {
	t.Helper()
	home = t.TempDir()
	base, _ := freePorts(t, "")
	dev = startDev(t, home, build(t, filepath.Join(home, "bin", "bivouac"), "./cmd/bivouac"), base)
	raw, err := os.ReadFile(filepath.Join(home, ".bivouac", "dev.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		t.Fatal(err)
	}
	return dev, home, info
}

// TestAPIWalk fuzzes the API from its OpenAPI description on a cluster of three nodes, with
// valid and invalid requests. It accepts no 5xx, no hang, nothing undescribed, no secret in a
// response, a log or the replicated state, and no change to a user who made no request.
func TestAPIWalk(t *testing.T) {
	dev, home, info := startedDev(t)
	var nodes []string
	for _, n := range info.Nodes {
		nodes = append(nodes, n.HTTP)
	}
	world, err := apifuzz.Plant(nodes, info.APIKey)
	if err != nil {
		t.Fatalf("%v\n%s", err, dev.output())
	}
	duration := 12 * time.Second
	if long() {
		duration = 10 * time.Minute
	}
	if given := os.Getenv("BIVOUAC_WALK"); given != "" { // a duration of the caller's choice
		if duration, err = time.ParseDuration(given); err != nil {
			t.Fatal(err)
		}
	}
	report, err := world.Walk(t.Context(), apifuzz.Config{
		Document: httpapi.Description(), Seed: seedOf(t), Workers: 6, For: duration, Deadline: 75 * time.Second,
		Fault: electionsOf(t, info),
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, dev.output())
	}
	t.Logf(
		"%d requests, of which %d good (%d of them answered 2xx), %d looks at what is B's; statuses %v, the 401s to %v",
		report.Requests,
		report.Good,
		report.Passed,
		report.Snapshots,
		report.Statuses,
		report.Refused,
	)
	var never []string
	for id := range report.Operations {
		if report.Succeeded[id] == 0 {
			never = append(never, id)
		}
	}
	slices.Sort(never)
	t.Logf("%d operations, of which these were never answered 2xx: %v", len(report.Operations), never)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Requests < 500 || report.Passed < 50 || report.Snapshots == 0 || len(report.Operations) < 40 {
		t.Errorf("that was no walk: %d operations, %+v", len(report.Operations), report.Operations)
	}
	dev.interrupt(t)
	found, err := world.InFiles(stateFiles(t, home))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range found {
		t.Error(one)
	}
}

// electionsOf polls the nodes. The function that it returns reports whether the cluster had no
// leader or changed it since a time. A starved machine can cause that, and then a 503 with
// Retry-After is a correct response.
func electionsOf(t *testing.T, info devInfo) func(time.Time) string {
	t.Helper()
	type sample struct {
		at   time.Time
		term uint64
		bad  bool
	}
	look := func() (s sample) {
		for _, n := range info.Nodes {
			status, err := testcluster.Client{Base: n.HTTP, Key: info.APIKey}.Status()
			s.bad = s.bad || err != nil || !status.Ready
			s.term = max(s.term, status.Term)
		}
		s.at = time.Now()
		return s
	}
	var mu sync.Mutex
	calm, term := time.Now(), look().term // the last time without trouble
	note := func() {
		s := look()
		mu.Lock()
		defer mu.Unlock()
		if s.bad || s.term != term {
			calm, term = s.at, s.term
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-stopped })
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				note()
			}
		}
	}()
	return func(since time.Time) string {
		note()
		mu.Lock()
		defer mu.Unlock()
		if calm.After(since.Add(-5 * time.Second)) {
			return "an election"
		}
		return ""
	}
}

// stateFiles lists the logs and the replicated state in the folder of `bivouac dev`. It leaves
// out the secret store, the sandboxes' own files and the operator's key.
func stateFiles(t *testing.T, home string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(filepath.Join(home, ".bivouac"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"secrets", "sandboxes", "tls"}, d.Name()) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && d.Name() != "api-key" {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if all := fmt.Sprint(paths); !strings.Contains(all, "bivouac.log") || !strings.Contains(all, "n3") {
		t.Fatalf("logs or state are not among %v", paths)
	}
	return paths
}
