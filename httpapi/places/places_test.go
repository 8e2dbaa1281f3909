package places

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

// crowd takes places by name and notes who was evicted.
type crowd struct {
	room    *Room
	by      map[string]*Place
	evicted []string
}

func newCrowd(l Limits) *crowd { return &crowd{room: New(l), by: map[string]*Place{}} }

func (c *crowd) take(name, address string) bool {
	p := c.room.Take(Origin(address), func() { c.evicted = append(c.evicted, name) })
	c.by[name] = p
	return p != nil
}

func (c *crowd) wants(t *testing.T, evicted ...string) {
	t.Helper()
	if !slices.Equal(c.evicted, evicted) {
		t.Errorf("evicted %v, want %v", c.evicted, evicted)
	}
}

func TestRoom_AnAddressLosesItsOwn(t *testing.T) {
	c := newCrowd(Limits{Total: 10, Each: 2})
	c.take("other", "10.0.0.2:1")
	c.take("a", "10.0.0.1:1")
	c.take("b", "10.0.0.1:2")
	c.by["a"].Set(Busy)
	if !c.take("c", "10.0.0.1:3") {
		t.Fatal("refused although b gives way")
	}
	c.wants(t, "b")
	c.by["c"].Set(Busy)
	if c.take("d", "10.0.0.1:4") {
		t.Error("nobody gives way, and d was admitted")
	}
	if !c.take("e", "10.0.0.3:1") {
		t.Error("another address is refused")
	}
	c.wants(t, "b")
	c.by["a"].Leave()
	c.by["a"].Leave()
	if !c.take("d", "10.0.0.1:4") || c.room.Open() != 4 {
		t.Errorf("the place is not given away: %d are open", c.room.Open())
	}
}

func TestRoom_UnauthenticatedBeforeIdleAndOldestFirst(t *testing.T) {
	c := newCrowd(Limits{Total: 4, Each: 4})
	for i := range 4 {
		c.take(fmt.Sprint(i), fmt.Sprintf("10.0.0.%d", i))
	}
	c.by["0"].Set(Busy)
	c.by["0"].Set(Idle)
	c.by["1"].Set(Busy)
	c.take("4", "10.0.1.4")
	c.take("5", "10.0.1.5")
	c.by["4"].Set(Busy)
	c.by["5"].Set(Busy)
	c.wants(t, "2", "3")
	c.take("6", "10.0.1.6")
	c.wants(t, "2", "3", "0")
	c.by["6"].Set(Busy)
	if c.take("7", "10.0.1.7") {
		t.Error("all are busy, and 7 was admitted")
	}
	// An evicted place changes nothing more.
	c.by["2"].Set(Idle)
	c.by["2"].Leave()
	if c.room.Open() != 4 || c.take("7", "10.0.1.7") {
		t.Errorf("%d are open", c.room.Open())
	}
}

func TestRoom_TheExemptFillTheRoomAlone(t *testing.T) {
	c := newCrowd(Limits{Total: 3, Each: 1})
	for i := range 3 {
		if p := c.room.Take(netip.Prefix{}, func() {}); p == nil {
			t.Fatalf("place %d is refused", i)
		} else {
			p.Set(Busy)
		}
	}
	if c.take("a", "10.0.0.1") {
		t.Error("the room is full, and a was admitted")
	}
}

func TestOrigin(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1/32", "10.0.0.1": "10.0.0.1/32", "[::ffff:10.0.0.1]:80": "10.0.0.1/32",
		"[2001:db8::1:2:3:4]:80": "2001:db8::/64", "2001:db8::5": "2001:db8::/64", "[fe80::1%eth0]:80": "fe80::/64",
		"pipe": "invalid Prefix", "": "invalid Prefix",
	} {
		if got := Origin(address).String(); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// TestRoom_Crowd takes, changes and leaves places from many goroutines: no limit is exceeded, and
// nothing is left at the end.
func TestRoom_Crowd(t *testing.T) {
	const total, each = 20, 4
	r := New(Limits{Total: total, Each: each})
	var crowd sync.WaitGroup
	for range 16 {
		crowd.Go(func() {
			for range 500 {
				p := r.Take(Origin(fmt.Sprintf("10.0.0.%d", rand.IntN(8))), func() {})
				if n := r.Open(); n > total {
					t.Errorf("%d are open", n)
				}
				if p == nil {
					continue
				}
				p.Set(State(rand.IntN(3)))
				r.Unauthenticated()
				p.Set(State(rand.IntN(3)))
				p.Leave()
			}
		})
	}
	crowd.Wait()
	if r.Open() != 0 || len(r.origins) != 0 || r.all.waiting[Unauthenticated].Len()+r.all.waiting[Idle].Len() != 0 {
		t.Errorf("%d are open, %d origins", r.Open(), len(r.origins))
	}
}
