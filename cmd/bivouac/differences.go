package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler"
)

// surroundings compares a restored state with Nomad and the secret store.
type surroundings struct {
	runner  scheduler.Runner
	secrets interface {
		Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
		Newest(ctx context.Context, path string) (int, error)
	}
}

// readsAtOnce bounds the concurrent reads of the secret store.
const readsAtOnce = 8

// Differences implements operators.Surroundings.
func (s surroundings) Differences(ctx context.Context, v *fsm.View) wire.Differences {
	d := wire.Differences{
		Unknown:  []string{},
		Missing:  []string{},
		Secrets:  []string{},
		Newer:    []string{},
		Problems: []string{},
	}
	if err := s.jobs(ctx, v, &d); err != nil {
		d.Problems = append(d.Problems, fmt.Sprintf("the jobs: %v", err))
	}
	if err := s.compare(ctx, v, &d); err != nil {
		d.Problems = append(d.Problems, fmt.Sprintf("the secrets: %v", err))
	}
	for _, list := range []*[]string{&d.Unknown, &d.Missing, &d.Secrets, &d.Newer} {
		slices.Sort(*list)
	}
	return d
}

// jobs compares the sandboxes with the runner's jobs.
func (s surroundings) jobs(ctx context.Context, v *fsm.View, d *wire.Differences) error {
	list, err := s.runner.List(ctx, v.ClusterID())
	if err != nil {
		return err
	}
	runs := map[string]bool{}
	for _, o := range list {
		if o.Exists && !o.Foreign && !o.Stopped {
			runs[o.SandboxID] = true
		}
	}
	for id := range runs {
		if v.SandboxAny(id) == nil {
			d.Unknown = append(d.Unknown, id)
		}
	}
	for sb := range v.AllSandboxes() {
		if sb.Desired == fsm.DesiredRunning && !runs[sb.ID] {
			d.Missing = append(d.Missing, sb.ID)
		}
	}
	return nil
}

// compare checks every version of a secret that the state refers to, and looks for later
// versions. It stops if the store does not answer.
func (s surroundings) compare(ctx context.Context, v *fsm.View, d *wire.Differences) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, readsAtOnce)
	look := func(list *[]string, at func() (string, error)) {
		if ctx.Err() != nil {
			return
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			found, err := at()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				cancel(err)
			case found != "":
				*list = append(*list, found)
			}
		})
	}
	latest := map[string]int{}
	for ref := range v.SecretRefs() {
		latest[ref.Path] = max(latest[ref.Path], ref.Version)
		look(&d.Secrets, func() (string, error) { return s.missing(ctx, ref) })
	}
	for path, version := range latest {
		look(&d.Newer, func() (string, error) { return s.newer(ctx, path, version) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// missing returns the name of a version that the store lacks, "" if the store has it.
func (s surroundings) missing(ctx context.Context, ref fsm.SecretRef) (string, error) {
	_, err := s.secrets.Read(ctx, ref)
	if fsm.CodeOf(err) == fsm.CodeNotFound {
		return fmt.Sprintf("%s version %d", ref.Path, ref.Version), nil
	}
	return "", err
}

// newer returns the name of an entry with a later version than the state's latest, "" if there
// is none.
func (s surroundings) newer(ctx context.Context, path string, version int) (string, error) {
	newest, err := s.secrets.Newest(ctx, path)
	if err != nil || newest <= version {
		return "", err
	}
	return fmt.Sprintf("%s version %d, the store has %d", path, version, newest), nil
}
