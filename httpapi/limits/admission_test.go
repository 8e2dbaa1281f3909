package limits

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slotOf is an admitted request of a user.
func (a *Admission) slotOf(t *testing.T, user string) *Slot {
	t.Helper()
	s, err := a.Enter(user, t.Context)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// One user's large requests take turns with those of other users: of a user one works at a time, and
// all together on half of the processors.
func TestAdmission_LargeRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := NewAdmission(4)
		var mu sync.Mutex
		var order []string
		free := make(chan struct{})
		work := func(user string) {
			s := a.slotOf(t, user)
			go func() {
				if err := s.TakeTurn(t.Context); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, user)
				mu.Unlock()
				<-free
				s.Leave()
			}()
			synctest.Wait()
		}
		for _, user := range []string{"mallory", "mallory", "mallory", "alice", "alice", "bob", "bob"} {
			work(user)
		}
		defer close(free)
		for want := 2; ; want++ {
			if len(order) != want {
				t.Fatalf("%d requests had their turn on two processors: %v", len(order), order)
			}
			if want == 7 {
				break
			}
			free <- struct{}{}
			synctest.Wait()
		}
		if got := strings.Join(order, " "); got != "mallory alice bob mallory alice bob mallory" {
			t.Errorf("the turns were of %s", got)
		}
	})
}

// The bodies of one user's requests in progress are bounded in bytes. Small ones don't count, and
// other users' don't wait for them.
func TestAdmission_BodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAdmission(2)
		hold := func(user string, n int64) (*Slot, error) {
			s := a.slotOf(t, user)
			return s, s.HoldBody(func() context.Context {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				t.Cleanup(cancel)
				return ctx
			}, n)
		}
		var held []*Slot
		for range 4 {
			s, err := hold("alice", userBodies/4)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, s)
		}
		if s, err := hold("alice", FreeBytes+1); err == nil {
			t.Error("any number of bodies is held")
		} else {
			s.Leave()
		}
		for user, n := range map[string]int64{"alice": FreeBytes, "bob": userBodies} {
			s, err := hold(user, n)
			if err != nil {
				t.Errorf("%s, %d bytes: %v", user, n, err)
			}
			s.Leave()
		}
		for _, s := range held {
			s.Leave()
		}
		if !a.bodies.TryAcquire(allBodies) {
			t.Error("bodies of requests that ended are held")
		}
	})
}
