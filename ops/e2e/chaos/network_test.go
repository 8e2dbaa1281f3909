//go:build linux

package chaos

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// echoEnv makes this test binary serve on a node: not every machine has `nc`.
const echoEnv = "BIVOUAC_NEMESIS_ECHO"

func TestMain(m *testing.M) {
	if address := os.Getenv(echoEnv); address != "" {
		serve(address)
	}
	os.Exit(m.Run())
}

// serve writes one byte to every connection.
func serve(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		os.Exit(1)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(0)
		}
		_, _ = c.Write([]byte("."))
		_ = c.Close()
	}
}

// TestNetwork_CutsDelaysAndHeals: a node in its namespace is reachable through the router,
// unreachable while the link is cut in either direction, late while the link is slow, and
// reachable again after Heal. Nothing is left afterwards.
func TestNetwork_CutsDelaysAndHeals(t *testing.T) {
	Need(t, testcluster.Need)
	var spaces []string
	t.Run("network", func(t *testing.T) {
		n := NewNetwork(t, 2, 1)
		spaces = slices.Clone(n.spaces)
		address := n.Host(0) + ":7000"
		run := n.Command(0, os.Args[0])
		cmd := exec.Command(run[0], run[1:]...)
		cmd.Env = append(os.Environ(), echoEnv+"="+address)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		testcluster.Eventually(t, "the node answers", func() error { return dial(address, time.Second) })
		for _, cut := range [][2]int{{0, 2}, {2, 0}} {
			n.Set(cut[0], cut[1], Link{Cut: true})
			if dial(address, 100*time.Millisecond) == nil {
				t.Errorf("the link from %d to %d is cut and carries", cut[0], cut[1])
			}
			n.Heal()
		}
		before := n.Packets()
		n.Set(2, 0, Link{Delay: 30 * time.Millisecond})
		begin := time.Now()
		testcluster.Eventually(t, "the slow node answers", func() error { return dial(address, time.Second) })
		if took := time.Since(begin); took < 30*time.Millisecond {
			t.Errorf("a link of 30 ms was passed in %s", took)
		}
		n.Set(2, 0, Link{Loss: 1})
		if dial(address, 100*time.Millisecond) == nil {
			t.Error("a link that loses all carries")
		}
		if p := n.Packets(); p.Delayed == before.Delayed || p.Lost == before.Lost {
			t.Errorf("not counted: %+v, before %+v", p, before)
		}
		n.Heal()
		testcluster.Eventually(t, "the healed node answers", func() error { return dial(address, time.Second) })
	})
	for _, s := range spaces {
		if _, err := os.Stat("/var/run/netns/" + s); err == nil {
			t.Errorf("the namespace %s is left", s)
		}
	}
}

func dial(address string, patience time.Duration) error {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// TestSchedule_IsTheSeeds: the same seed gives the same rounds, every kind comes before any
// kind comes twice, and no round has a kind twice.
func TestSchedule_IsTheSeeds(t *testing.T) {
	a, b := NewSchedule(7), NewSchedule(7)
	seen := map[Kind]int{}
	var all []string
	for len(seen) < len(Kinds()) {
		r, same := a.Next(), b.Next()
		if r.String() != same.String() || !slices.Equal(r.Faults, same.Faults) {
			t.Fatalf("%v and %v of one seed", r, same)
		}
		taken := map[class]bool{}
		for _, f := range r.Faults {
			for _, c := range kindClasses[f.Kind] {
				if taken[c] {
					t.Errorf("%v does one thing twice", r)
				}
				taken[c] = true
			}
			seen[f.Kind]++
		}
		all = append(all, r.String())
	}
	if other := NewSchedule(8).Next(); other.String() == all[0] {
		t.Error("another seed gives the same first round")
	}
	if len(all) > len(Kinds()) {
		t.Errorf("%d rounds until every kind came:\n%s", len(all), strings.Join(all, "\n"))
	}
}
