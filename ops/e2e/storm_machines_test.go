//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/ops/e2e/workload"
)

// The size of TestStorm_Machines.
const (
	envUsers     = "BIVOUAC_DRILL_USERS"
	envSandboxes = "BIVOUAC_DRILL_SANDBOXES"
	envStorm     = "BIVOUAC_DRILL_STORM"
)

// stormStore is what the storm's nodes say of copies and of what nobody has: the sweep is soon, and
// no limit delays what it removes.
const stormStore = `
workspaces {
  backup   = "file://%s"
  interval = "30s"
}
sandboxes {
  orphan_retention  = "1m"
  removals_per_hour = 100000
}
`

// machineStorm breaks the machines of the sandboxes, one fault at a time.
type machineStorm struct {
	*machines
	t    *testing.T
	rand *rand.Rand
	// of has the Nomad agents by the ids of their clients; that of first is the server, too.
	of      map[string]*local.Nomad
	first   string
	counts  map[string]int
	refused int
}

// machineFault breaks a machine and returns what undoes it, nil for nothing done.
type machineFault func(context.Context) (undo func() error, err error)

// faults are the faults by name.
func (s *machineStorm) faults() map[string]machineFault {
	return map[string]machineFault{
		"drain": s.drainOne, "nomad-drain": s.drainInNomad, "crash": s.crashOne, "freeze": s.freezeOne,
		"store-away": s.storeAway,
	}
}

// TestStorm_Machines: eight users start, use, pause, resume and delete 200 sandboxes on three
// machines, while these are drained, crash, hang and come back, the leader is killed, Nomad's
// server restarts, Vault is sealed, and the store of copies is away. At the end each sandbox is as
// acknowledged with its file and its messages, and there is no job, volume, folder, secret or copy
// that none of them has, and no row that is stuck. BIVOUAC_DRILL_USERS, BIVOUAC_DRILL_SANDBOXES and
// BIVOUAC_DRILL_STORM set its size and duration.
func TestStorm_Machines(t *testing.T) {
	if !long() {
		t.Skip("takes minutes; BIVOUAC_DRILL=long runs it")
	}
	users, sandboxes, duration := sizeOf(t, envUsers, 8), sizeOf(t, envSandboxes, 200), stormTime(t, 10*time.Minute)
	store := t.TempDir()
	f := testcluster.Start(t, testcluster.Options{
		Specs: tinySpec, Vault: "unreferenced_grace = \"2m\"\ncollect_interval = \"10s\"",
		Backend: fmt.Sprintf("lost_after = %q", lostAfter), Config: fmt.Sprintf(stormStore, store), LogLevel: "info",
	})
	o := workload.ActorOptions{
		Cluster: f, Specs: []string{"tiny"}, Actors: users, Each: max(1, sandboxes/users), Resume: true, Seed: drillSeed(t),
	}
	for i := range users {
		o.Keys = append(o.Keys, f.Nodes[0].NewKey(t, fmt.Sprintf("user-%d", i)))
	}
	s := newMachineStorm(t, f, store, o.Seed)
	t.Logf("seed %d, %s, %d users with %d sandboxes each", o.Seed, duration, users, o.Each)
	actors := workload.NewActors(o)
	kinds := []chaos.Kind{chaos.KillLeader, chaos.KillNode, chaos.PauseLeader, chaos.KillNomad, chaos.SealVault}
	nemesis := chaos.New(t, f, nil, chaos.NewSchedule(o.Seed, kinds...), func(string, ...any) {})
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var working sync.WaitGroup
	var broken, unrecovered error
	working.Go(func() { actors.Run(ctx) })
	working.Go(func() { broken = s.run(ctx) })
	working.Go(func() { unrecovered = nemesis.Run(ctx) })
	working.Wait()
	if err := errors.Join(broken, unrecovered); err != nil {
		t.Fatalf("the machines or the stack did not recover: %v", err)
	}
	s.recovered()
	report := actors.Check(t)
	s.nothingLeft()
	for _, bad := range slices.Concat(nemesis.Figures().TwoLeaders, nemesis.Figures().Ended) {
		t.Error(bad)
	}
	verdict := "as it should be"
	if t.Failed() {
		verdict = "FAILED"
	}
	t.Logf("--- verdict: storm of machines: %s: seed %d, %s: faults of machines %v, %d drains refused; %s; %s", verdict,
		o.Seed, duration, s.counts, s.refused, nemesis.Figures(), report)
}

// stormTime is the duration of the environment, or usual.
func stormTime(t *testing.T, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(envStorm)
	if text == "" {
		return usual
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", envStorm, err)
	}
	return d
}

func newMachineStorm(t *testing.T, f *testcluster.Cluster, store string, seed uint64) *machineStorm {
	t.Helper()
	s := &machineStorm{
		machines: &machines{lost: &lost{operators: &operators{Cluster: f, spec: "tiny", node: f.Nodes[0]}}, store: store},
		t:        t, rand: rand.New(rand.NewPCG(seed, 0x6d616368)), of: map[string]*local.Nomad{}, counts: map[string]int{},
	}
	for i, n := range []*local.Nomad{f.Nomad, f.AddMachine(t), f.AddMachine(t)} {
		id, err := n.NodeID(t.Context())
		s.must(t, err)
		if s.of[id] = n; i == 0 {
			s.first = id
		}
	}
	return s
}

// run carries out the faults until ctx ends, each one once before any comes again.
func (s *machineStorm) run(ctx context.Context) error {
	faults := s.faults()
	var deck []string
	for ctx.Err() == nil {
		if len(deck) == 0 {
			deck = slices.Sorted(maps.Keys(faults))
			s.rand.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		name := deck[0]
		deck = deck[1:]
		begin := time.Now()
		undo, err := faults[name](ctx)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		case undo == nil:
			s.t.Logf("%s: not now", name)
		default:
			s.counts[name]++
			s.t.Logf("%s, for %.0f s", name, time.Since(begin).Seconds())
			if err := testcluster.Await(2*testcluster.Patience, undo); err != nil {
				return fmt.Errorf("undoing %s: %w", name, err)
			}
		}
		testcluster.Pause(ctx, 5*time.Second)
	}
	return nil
}

// one chooses a machine: any of them, or one that is no server.
func (s *machineStorm) one(servers bool) (id string) {
	ids := slices.Sorted(maps.Keys(s.of))
	if !servers {
		ids = slices.DeleteFunc(ids, func(id string) bool { return id == s.first })
	}
	return ids[s.rand.IntN(len(ids))]
}

func (s *machineStorm) some(least, most time.Duration) time.Duration {
	return least + time.Duration(s.rand.Int64N(int64(most-least)))
}

// drainOne is an operator's drain, which moves workspaces. It may be refused, as without room.
func (s *machineStorm) drainOne(ctx context.Context) (func() error, error) {
	path, refused := "/api/v1/operator/clients/"+s.one(true), false
	ask := func(what string) func() error {
		return func() error {
			answer, err := s.Nodes[s.rand.IntN(len(s.Nodes))].Try(http.MethodPost, path+what, nil)
			if refused = err == nil && answer.Status == http.StatusConflict; err == nil && answer.Status/100 != 2 && !refused {
				err = errors.New(answer.String())
			}
			return err
		}
	}
	end := ask("/enable")
	if err := testcluster.Await(testcluster.Patience, ask("/drain")); err != nil || refused {
		s.refused++
		return nil, errors.Join(err, testcluster.Await(testcluster.Patience, end)) // an earlier answer may be lost
	}
	testcluster.Pause(ctx, s.some(20*time.Second, time.Minute))
	return end, nil
}

// drainInNomad drains a client in Nomad, which pauses what is there.
func (s *machineStorm) drainInNomad(ctx context.Context) (func() error, error) {
	id := s.one(true)
	set := func(in map[string]any) func() error {
		return func() error {
			return s.Nomad.Do(context.WithoutCancel(ctx), http.MethodPut, "node/"+id+"/drain", in, nil)
		}
	}
	err := testcluster.Await(testcluster.Patience, set(map[string]any{"DrainSpec": map[string]any{"Deadline": time.Hour}}))
	testcluster.Pause(ctx, s.some(5*time.Second, 20*time.Second))
	return set(map[string]any{"DrainSpec": nil, "MarkEligible": true}), err
}

// crashOne crashes a machine, now and then for longer than Nomad waits for it.
func (s *machineStorm) crashOne(ctx context.Context) (func() error, error) {
	n := s.of[s.one(false)]
	err := n.Crash()
	away := s.some(5*time.Second, 40*time.Second)
	if s.rand.IntN(3) == 0 {
		away = lostAfter + 15*time.Second
	}
	testcluster.Pause(ctx, away)
	return func() error { return n.Start(context.WithoutCancel(ctx)) }, err
}

// freezeOne lets a machine hang.
func (s *machineStorm) freezeOne(ctx context.Context) (func() error, error) {
	n := s.of[s.one(false)]
	err := n.Freeze()
	testcluster.Pause(ctx, s.some(5*time.Second, 30*time.Second))
	return n.Thaw, err
}

// storeAway takes the directory of the copies away, as one that is not mounted.
func (s *machineStorm) storeAway(ctx context.Context) (func() error, error) {
	// Before the first copy of all an empty directory is the store.
	if made, err := filepath.Glob(filepath.Join(s.store, "*", "*", "*", "manifest")); err != nil || len(made) < 5 {
		return nil, err
	}
	aside := s.store + ".away"
	err := os.Rename(s.store, aside)
	testcluster.Pause(ctx, s.some(5*time.Second, 20*time.Second))
	return func() error {
		left, err := filepath.Glob(filepath.Join(s.store, "*", "*", "*", "*"))
		if err == nil && len(left) > 3 { // a leader that was killed beside it leaves what it was writing
			return fmt.Errorf("the mount point is filled: %v", left)
		}
		return errors.Join(err, os.RemoveAll(s.store), os.Rename(aside, s.store))
	}, err
}

// recovered waits until the machines take sandboxes, and no operator's mark is left.
func (s *machineStorm) recovered() {
	for id := range s.of {
		testcluster.Eventually(s.t, "machine "+id+" takes sandboxes", func() error {
			var node struct{ Status, SchedulingEligibility string }
			err := s.Nomad.Do(s.t.Context(), http.MethodGet, "node/"+id, nil, &node)
			if err == nil && (node.Status != "ready" || node.SchedulingEligibility != "eligible") {
				err = fmt.Errorf("it is %+v", node)
			}
			return err
		})
		s.await(s.t, "no mark is left", id, func(c client) bool { return c.Mark == nil || *c.Mark == "" })
	}
}

// nothingLeft checks that the machines and the store have nothing that no sandbox has.
func (s *machineStorm) nothingLeft() {
	for what, check := range map[string]func() error{
		"no folder without a volume": s.folders, "no job beside a workspace": s.noCarriers,
		"no copy without a sandbox": s.copiesHaveRows, "no row is stuck": s.noneStuck,
	} {
		if err := testcluster.Await(4*testcluster.Patience, check); err != nil {
			s.t.Errorf("%s: %v", what, err)
		}
	}
}

// folders compares the folders of the machines with Nomad's volumes. What Nomad's servers have
// forgotten and a client still has is Nomad's own (hashicorp/nomad#27313), and logged.
func (s *machineStorm) folders() error {
	var volumes []struct{ ID string }
	if err := s.Nomad.Do(s.t.Context(), http.MethodGet, "volumes?type=host", nil, &volumes); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, v := range volumes {
		known[v.ID] = true
	}
	var errs []error
	for id, n := range s.of {
		var node struct {
			HostVolumes map[string]struct{ ID string }
		}
		if err := s.Nomad.Do(s.t.Context(), http.MethodGet, "node/"+id, nil, &node); err != nil {
			return err
		}
		ghosts := map[string]bool{}
		for _, v := range node.HostVolumes {
			ghosts[v.ID] = !known[v.ID]
		}
		found, err := filepath.Glob(filepath.Join(n.Dir, "data", "host_volumes", "*"))
		errs = append(errs, err)
		for _, dir := range found {
			switch name := filepath.Base(dir); {
			case ghosts[name]:
				s.t.Logf("Nomad's servers have forgotten the volume at %s", dir)
			case !known[name]:
				errs = append(errs, fmt.Errorf("%s is no volume's", dir))
			}
		}
	}
	return errors.Join(errs...)
}

// noCarriers looks for jobs that copy or move workspaces.
func (s *machineStorm) noCarriers() error {
	jobs, err := s.Jobs()
	for _, j := range jobs {
		if strings.HasPrefix(j.ID, "workspace-") {
			err = errors.Join(err, fmt.Errorf("job %s", j.ID))
		}
	}
	return err
}

// copiesHaveRows looks for copies of sandboxes that Nomad has no volume of.
func (s *machineStorm) copiesHaveRows() error {
	volumes, err := s.Volumes()
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, name := range volumes {
		name, _, _ = strings.Cut(name, ".")
		has[strings.TrimPrefix(name, "sandbox-")] = true
	}
	left := map[string]bool{}
	err = filepath.WalkDir(s.store, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		inside, err := filepath.Rel(s.store, path)
		if parts := strings.Split(inside, string(filepath.Separator)); len(parts) > 2 && !has[parts[1]] {
			left[parts[1]] = true
		}
		return err
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("copies of %v", slices.Sorted(maps.Keys(left)))
	}
	return err
}

// noneStuck looks for rows that are not as they should be.
func (s *machineStorm) noneStuck() error {
	var errs []error
	for _, n := range s.Nodes {
		values, err := n.Metrics(s.t.Context())
		errs = append(errs, err)
		found := 0
		for name, v := range values {
			if !strings.HasPrefix(name, "bivouac_sandboxes_unconverged_oldest_seconds") {
				continue
			}
			if found++; v > 0 {
				errs = append(errs, fmt.Errorf("%s: %s is %v", n.Name, name, v))
			}
		}
		if err == nil && found == 0 {
			errs = append(errs, fmt.Errorf("%s does not say how old its wishes are", n.Name))
		}
	}
	return errors.Join(errs...)
}
