package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Strangers who keep hundreds of silent connections to every peer port open do
// not keep the nodes apart when they need new ones: to elect another leader, and
// when one comes back.
func TestReal_AFloodOfStrangersKeepsNobodyOut(t *testing.T) {
	r := newReal(t, 3, cluster.LogStoreBoltDB)
	r.startAll()
	r.put(t.Context(), 0, 1)
	for _, n := range r.nodes {
		(&cluster.Flood{Width: 400, Pause: 500 * time.Millisecond}).Start(t, n.node.PeerAddr())
	}
	for number := 2; number < 4; number++ {
		lost := r.leader()
		r.kill(lost)
		r.write((lost+1)%3, number)
		r.want(t.Context(), number)
		r.start(lost)
		r.ready(lost)
		r.want(t.Context(), number)
	}
}

// write is put for machines so busy that leaders are lost: it repeats the command,
// as clients do, until the answer is known.
func (r *real) write(i, number int) {
	r.t.Helper()
	cmd := put("ada", number)
	var err error
	eventually(r.t, func() bool {
		_, err = r.nodes[i].node.Propose(r.t.Context(), cmd)
		return err == nil
	}, func() string { return fmt.Sprintf("n%d: Propose: %s: %v", i, fsm.CodeOf(err), err) })
}
