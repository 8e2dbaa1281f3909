package testcluster

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A check asks nodes, Nomad and Vault. Ten seconds of waiting took 500 of them.
func TestAwait_PollsLessOftenTheLongerItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			patience    time.Duration
			least, most int
		}{{200 * time.Millisecond, 9, 11}, {10 * time.Second, 100, 160}} {
			polls := 0
			if err := Await(c.patience, func() error { polls++; return errors.New("not yet") }); err == nil {
				t.Error("what never holds is awaited")
			}
			if polls < c.least || polls > c.most {
				t.Errorf("%d polls within %s, want %d to %d", polls, c.patience, c.least, c.most)
			}
		}
	})
}
