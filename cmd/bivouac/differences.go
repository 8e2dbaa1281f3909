package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi"
	"bivouac.dev/bivouac/scheduler"
)

// surroundings compares a state that was restored with Nomad and the secret store.
type surroundings struct {
	runner  scheduler.Runner
	secrets interface {
		Read(ctx context.Context, ref fsm.SecretRef) (map[string]string, error)
	}
}

// readsAtOnce bounds how many secrets are looked for at a time.
const readsAtOnce = 8

// Differences implements httpapi.Surroundings.
func (s surroundings) Differences(ctx context.Context, v *fsm.View) httpapi.Differences {
	d := httpapi.Differences{Unknown: []string{}, Missing: []string{}, Secrets: []string{}, Problems: []string{}}
	if err := s.jobs(ctx, v, &d); err != nil {
		d.Problems = append(d.Problems, fmt.Sprintf("the jobs: %v", err))
	}
	if err := s.lost(ctx, v, &d); err != nil {
		d.Problems = append(d.Problems, fmt.Sprintf("the secrets: %v", err))
	}
	for _, list := range []*[]string{&d.Unknown, &d.Missing, &d.Secrets} {
		slices.Sort(*list)
	}
	return d
}

// jobs compares sandboxes with what the runner runs.
func (s surroundings) jobs(ctx context.Context, v *fsm.View, d *httpapi.Differences) error {
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

// lost looks for every version of a secret that the state refers to. A store that
// does not answer ends it.
func (s surroundings) lost(ctx context.Context, v *fsm.View, d *httpapi.Differences) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, readsAtOnce)
	for ref := range v.SecretRefs() {
		if ctx.Err() != nil {
			break
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			_, err := s.secrets.Read(ctx, ref)
			switch {
			case err == nil || ctx.Err() != nil:
			case fsm.CodeOf(err) == fsm.CodeNotFound:
				mu.Lock()
				defer mu.Unlock()
				d.Secrets = append(d.Secrets, fmt.Sprintf("%s version %d", ref.Path, ref.Version))
			default:
				cancel(err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
