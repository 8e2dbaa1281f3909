//go:build linux

package bench

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"bivouac.dev/bivouac/ops/e2e/chaos"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// distance is the time from one node to another and back, in the far half of the rounds.
const distance = 20 * time.Millisecond

// TestDistance measures writes of three and of five nodes, with nothing and with 20 ms between them, in
// turns. A write at the leader takes a round trip to a majority, one through a follower another to the
// leader.
func TestDistance(t *testing.T) {
	wanted(t)
	chaos.Need(t, testcluster.Need)
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "nodes\tbetween them\twrite at\tclients\tms (median / p90 / max)\ta second\tmedian less that at 0, ms")
	for _, nodes := range []int{3, 5} {
		net := chaos.NewNetwork(t, nodes, 1)
		f := testcluster.Start(t, testcluster.Options{Bare: true, Nodes: nodes, Net: net})
		near := map[string]durations{}
		for _, between := range []time.Duration{0, distance} {
			apart(net, nodes, between/2)
			leader, follower := f.Leader(t), f.Followers(t)[0]
			for _, clients := range []int{1, 64} {
				for name, node := range map[string]*testcluster.Node{"the leader": leader, "a follower": follower} {
					took, second := writes(t, node, clients)
					which := fmt.Sprint(name, clients)
					if between == 0 {
						near[which] = took
					}
					fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%.1f / %.1f / %.1f\t%.0f\t%.1f\n", nodes, between, name, clients,
						ms(took.at(.5)), ms(took.at(.9)), ms(took.at(1)), second, ms(took.at(.5)-near[which].at(.5)))
				}
			}
		}
		net.Heal()
	}
	w.Flush()
	t.Logf("\n%s", text.String())
}

// writes measures writes at a node, of so many clients.
func writes(t *testing.T, node *testcluster.Node, clients int) (all durations, second float64) {
	t.Helper()
	write := request(node.Base+"/api/settings", node.Key, settings())
	together(t, 2*clients, clients, write)
	const rounds = 3
	for range rounds {
		r, took := rate(t, 64*clients, clients, write)
		all, second = append(all, took...), second+r/rounds
	}
	return all, second
}

// apart delays each packet between two nodes, in each direction.
func apart(net *chaos.Network, nodes int, delay time.Duration) {
	for i := range nodes {
		for j := range nodes {
			if i != j {
				net.Set(i, j, chaos.Link{Delay: delay})
			}
		}
	}
}

// settings is the body of a write of 512 bytes.
func settings() []byte {
	const begin, end = `{"llm_model":"`, `"}`
	return bytes.Join([][]byte{[]byte(begin), []byte(end)}, bytes.Repeat([]byte("m"), 512-len(begin)-len(end)))
}
