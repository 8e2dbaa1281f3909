package fsm_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/fsm/fsmtest"
)

// TestLimitsHoldAtEveryIndex: in any life, with restarts, no limit is exceeded after any command,
// and every kind of limit is reached.
func TestLimitsHoldAtEveryIndex(t *testing.T) {
	t.Parallel()
	reached := map[string]int{}
	wanted := []string{fsm.LimitRunning, fsm.LimitTotal, fsm.LimitStarts, fsm.LimitCPU, fsm.LimitMemory}
	var missing []string
	for range 10 {
		rapid.Check(t, func(r *rapid.T) { everyIndex(r, reached) })
		missing = nil
		for _, name := range wanted {
			for _, scope := range []string{fsm.LimitOfUser, fsm.LimitOfInstallation} {
				for _, c := range []fsm.CommandType{fsm.SandboxCreate, fsm.StartTaskCreate} {
					if key := fmt.Sprint(scope, name, " ", c); reached[key] == 0 {
						missing = append(missing, key)
					}
				}
			}
		}
		if len(missing) == 0 {
			break
		}
	}
	if t.Log(reached); len(missing) > 0 {
		t.Errorf("no life reached %v", missing)
	}
}

func everyIndex(r *rapid.T, reached map[string]int) {
	s, l, w := fsm.NewStore(), fsm.NewLife(r), &fsmtest.LimitWatch{}
	apply := func(index uint64, cmd fsm.Command) {
		_, err := s.Apply(index, cmd)
		if over := (*fsm.Error)(nil); errors.As(err, &over) && over.Code == fsm.CodeLimit {
			reached[over.Limit+" "+string(cmd.Type)]++
		}
		if err := w.After(s.View(), cmd); err != nil {
			r.Fatal(err)
		}
	}
	apply(1, fsm.NewCommand("spec", l.Next(s.View()).Time, "", &fsm.SpecApplyBody{Specs: []fsm.Spec{fsm.PooledSpec()}}))
	for i := range uint64(80) {
		apply(i+2, l.Next(s.View()))
		if rapid.IntRange(0, 20).Draw(r, "restart") > 0 {
			continue
		}
		var b bytes.Buffer
		if err := s.Snapshot().Persist(&b); err != nil {
			r.Fatal(err)
		}
		s = fsm.NewStore()
		if err := s.Restore(&b); err != nil {
			r.Fatal(err)
		}
	}
}
