package nomad

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"bivouac.dev/bivouac/scheduler"
)

// An allocation without any report from its client counts as never started after ten seconds, by
// our clock alone.
func TestPicture_ClocksThatDiffer_ChangeNothing(t *testing.T) {
	for what, ahead := range map[string]time.Duration{
		"the clocks agree": 0, "ours is 11 s ahead": 11 * time.Second, "ours is an hour behind": -time.Hour,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seen, err := lru.New[string, *allocFacts](10)
				if err != nil {
					t.Fatal(err)
				}
				r := &Runner{seen: seen}
				begin := time.Now()
				stamp := begin.Add(-ahead).UnixNano()
				live := func() int {
					job, a := ourJob(), &allocFacts{}
					job.Stop = true
					// As a listing has it.
					if err := json.Unmarshal(fmt.Appendf(nil, `{"ID":"a1","JobID":"sandbox-a","DesiredStatus":"stop",
						"ClientStatus":"pending","CreateIndex":12,"ModifyIndex":13,"ModifyTime":%d}`, stamp), a); err != nil {
						t.Fatal(err)
					}
					r.see(a)
					p := newObservation()
					p.jobs[job.ID] = job
					p.addAlloc(a)
					return p.observe("c1", job.ID).Live
				}
				for _, at := range []time.Duration{0, time.Second, neverTaken - time.Millisecond} {
					time.Sleep(at - time.Since(begin))
					if live() != 1 {
						t.Errorf("%s after it was seen first it counts as never started", at)
					}
				}
				time.Sleep(2 * time.Millisecond)
				if live() != 0 {
					t.Errorf("%s after it was seen first it still counts as live", neverTaken)
				}
			})
		})
	}
}

// A workspace is moved only while it is young by our own clock.
func TestRunner_WorkspaceOfUnknownAge_IsNotMoved(t *testing.T) {
	r := &Runner{} // it makes no calls
	for what, ws := range map[string]workspace{
		"a new leader sees it for the first time": {ID: "v1"},
		"this leader made it long ago":            {ID: "v1", Made: time.Now().Add(-movable - time.Second)},
	} {
		job := scheduler.Job{CreatedAt: time.Now().Add(-movable - time.Second)}
		if move, err := r.mayMove(t.Context(), job, ws); move || err != nil {
			t.Errorf("%s: move %v, %v", what, move, err)
		}
	}
}
