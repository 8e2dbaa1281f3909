package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/cluster/peernet/peernettest"
	"bivouac.dev/bivouac/fsm"
)

// Strangers who keep hundreds of silent connections to every peer port open do
// not keep the nodes apart when they need new ones: to elect another leader, and
// when one comes back. It is not parallel: the flood takes the processors.
func TestReal_AFloodOfStrangersKeepsNobodyOut(t *testing.T) {
	rounds := histories(0, 2)
	if rounds == 0 {
		t.Skip("the flood takes the CPU that an election needs beside other packages; make e2e runs it")
	}
	r := newReal(t, 3, cluster.LogStoreBoltDB)
	r.startAll()
	r.put(t.Context(), 0, 1)
	for _, n := range r.nodes {
		(&peernettest.Flood{Width: 400, Pause: 500 * time.Millisecond}).Start(t, n.node.PeerAddr())
	}
	for number := 2; number < 2+rounds; number++ {
		lost := r.leader()
		r.kill(lost)
		r.write((lost+1)%3, number)
		r.reads(number)
		r.start(lost)
		r.ready(lost)
		r.reads(number)
	}
}

// write is put for machines so busy that leaders are lost: it repeats the command,
// as clients do, until the answer is known.
func (r *real) write(i, number int) {
	r.t.Helper()
	cmd := put("ada", number)
	var err error
	eventually(r.t, func() bool {
		cmd.Time = time.Now().UTC().Truncate(time.Microsecond)
		_, err = r.nodes[i].node.Propose(r.t.Context(), cmd)
		return err == nil
	}, func() string { return fmt.Sprintf("n%d: Propose: %s: %v", i, fsm.CodeOf(err), err) })
}

// reads is want for such machines: a read without a leader is repeated, and its value is not.
func (r *real) reads(number int) {
	r.t.Helper()
	for i, n := range r.nodes {
		if n.node == nil {
			continue
		}
		var err error
		value := 0
		eventually(r.t, func() bool {
			v, failed := n.node.View(r.t.Context(), cluster.Linearizable)
			if err = failed; err == nil {
				value = got(v, "ada")
			}
			return err == nil
		}, func() string { return fmt.Sprintf("n%d: View: %v", i, err) })
		if value != number {
			r.t.Errorf("n%d reads %d, want %d", i, value, number)
		}
	}
}
