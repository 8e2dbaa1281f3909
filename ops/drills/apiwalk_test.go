package drills

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
	"bivouac.dev/bivouac/ops/apiwalk"
	"bivouac.dev/bivouac/ops/fleet"
)

// seedOf gives the seed of a random test: BIVOUAC_SEED, or a new one. It is
// printed either way.
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

// devInfo is what `bivouac dev` writes down once it is ready.
type devInfo struct {
	APIKey string `json:"api_key"`
	Nodes  []struct{ Name, HTTP string }
}

// startedDev builds the program, starts `bivouac dev` in an empty folder, and
// gives that with what it says of itself.
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

// TestAPIWalk walks the API's description on a cluster of three nodes, with good
// and broken requests: no 5xx, no hang, nothing that is not described, no secret
// in an answer, a log or the replicated state, and nothing changed of a user who
// did not ask.
func TestAPIWalk(t *testing.T) {
	dev, home, info := startedDev(t)
	var nodes []string
	for _, n := range info.Nodes {
		nodes = append(nodes, n.HTTP)
	}
	world, err := apiwalk.Plant(nodes, info.APIKey)
	if err != nil {
		t.Fatalf("%v\n%s", err, dev.output())
	}
	duration := 12 * time.Second
	if long() {
		duration = 10 * time.Minute
	}
	if given := os.Getenv("BIVOUAC_WALK"); given != "" { // a duration of one's own
		if duration, err = time.ParseDuration(given); err != nil {
			t.Fatal(err)
		}
	}
	report, err := world.Walk(t.Context(), apiwalk.Config{
		Document: httpapi.Description(), Seed: seedOf(t), Workers: 6, For: duration, Deadline: 75 * time.Second, Fault: electionsOf(t, info),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, of which %d good (%d of them answered 2xx), %d looks at what is B's; statuses %v, the 401s to %v", report.Requests, report.Good, report.Passed, report.Snapshots, report.Statuses, report.Refused)
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

// electionsOf watches the nodes and tells whether the cluster was without a
// leader, or changed it, since a time: a starved machine can bring that about,
// and then a 503 that says when to come again is the right answer.
func electionsOf(t *testing.T, info devInfo) func(time.Time) string {
	t.Helper()
	type sample struct {
		at   time.Time
		term uint64
		bad  bool
	}
	look := func() (s sample) {
		for _, n := range info.Nodes {
			var status struct {
				Term  uint64
				Ready bool
			}
			a, err := fleet.Client{Base: n.HTTP, Key: info.APIKey}.Try("GET", "/api/v1/operator/status", nil)
			if err == nil {
				err = a.Decode(&status)
			}
			s.bad = s.bad || err != nil || !status.Ready
			s.term = max(s.term, status.Term)
		}
		s.at = time.Now()
		return s
	}
	var mu sync.Mutex
	calm, term := time.Now(), look().term // since when all was well
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

// stateFiles lists what `bivouac dev` left in its folder, but for the secret
// store, the sandboxes' own files and the file with the operator's key: the
// logs and the replicated state.
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
