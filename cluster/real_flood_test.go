package cluster_test

import (
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster/peernet/peernettest"
)

// Strangers who keep hundreds of silent connections to every peer port open do
// not keep the nodes apart when they need new ones: to elect another leader, and
// when one comes back. It is not parallel: the flood takes the processors.
func TestReal_AFloodOfStrangersKeepsNobodyOut(t *testing.T) {
	rounds := histories(0, 2)
	if rounds == 0 {
		t.Skip("the flood takes the CPU that an election needs beside other packages; make large runs it")
	}
	r := newReal(t, 3)
	r.startAll()
	r.put(0, 1)
	for _, n := range r.nodes {
		(&peernettest.Flood{Width: 400, Pause: 500 * time.Millisecond}).Start(t, n.node.PeerAddr())
	}
	for number := 2; number < 2+rounds; number++ {
		lost := r.leader()
		r.kill(lost)
		r.put((lost+1)%3, number)
		r.want(number)
		r.start(lost)
		r.ready(lost)
		r.want(number)
	}
}
