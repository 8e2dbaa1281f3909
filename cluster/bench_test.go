package cluster_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"bivouac.dev/bivouac/cluster"
)

// benchCluster is three real nodes in this process, on one disk.
func benchCluster(b *testing.B) (leader, follower *cluster.Node) {
	b.Helper()
	r := newReal(b, 3)
	r.startAll()
	l := r.leader()
	return r.nodes[l].node, r.nodes[(l+1)%3].node
}

func BenchmarkNode_Propose(b *testing.B) {
	leader, follower := benchCluster(b)
	for name, n := range map[string]*cluster.Node{"leader": leader, "follower": follower} {
		for _, writers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", name, writers), func(b *testing.B) {
				parallel(b, writers, func(i int) error {
					_, err := n.Propose(b.Context(), put("ada", i))
					return err
				})
			})
		}
	}
}

func BenchmarkNode_View(b *testing.B) {
	leader, follower := benchCluster(b)
	for name, n := range map[string]*cluster.Node{"leader": leader, "follower": follower} {
		for _, readers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", name, readers), func(b *testing.B) {
				parallel(b, readers, func(int) error {
					_, err := n.View(b.Context(), cluster.Linearizable)
					return err
				})
			})
		}
	}
}

// parallel shares b.N calls of fn among as many goroutines.
func parallel(b *testing.B, goroutines int, fn func(i int) error) {
	var next atomic.Int64
	done := make(chan error, goroutines)
	b.ResetTimer()
	for range goroutines {
		go func() {
			for {
				i := int(next.Add(1))
				if i > b.N {
					done <- nil
					return
				}
				if err := fn(i); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for range goroutines {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "per_s")
}
