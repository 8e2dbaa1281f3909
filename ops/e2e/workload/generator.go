package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"bivouac.dev/bivouac/ops/e2e/lincheck"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// Endpoint is one node as a client sees it.
type Endpoint struct {
	Name, Base string
	// Life identifies the node's process. It is odd while none runs. nil means that nobody
	// restarts the node.
	Life func() uint64
}

// endpoints returns the nodes of a test cluster.
func endpoints(nodes []*testcluster.Node) (list []Endpoint) {
	for _, n := range nodes {
		list = append(list, Endpoint{Name: n.Name, Base: n.Base})
	}
	return list
}

// generator makes clients of the nodes. The seed decides their choices, but not their timing.
type generator struct {
	// Rec has the clock of all requests, and the history of recorded ones.
	Rec *lincheck.Recorder

	*tally
	nodes []Endpoint
	// operator is an operator's key.
	operator string
	seed     uint64
	clients  atomic.Int64
	names    atomic.Int64
}

func newGenerator(nodes []Endpoint, operator string, seed uint64) *generator {
	return &generator{Rec: lincheck.NewRecorder(), tally: newTally(), nodes: nodes, operator: operator, seed: seed}
}

// client makes one more client.
func (g *generator) client() *client {
	id := int(g.clients.Add(1)) - 1
	return &client{
		id: id, nodes: g.nodes, home: id % len(g.nodes), rec: g.Rec, tally: g.tally,
		rand: rand.New(rand.NewPCG(g.seed, uint64(id))),
		http: &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second,
		}},
	}
}

// name returns a unique name.
func (g *generator) name(prefix string) string { return fmt.Sprintf("%s-%d", prefix, g.names.Add(1)) }

// crowd runs steps in several clients until ctx ends.
func (g *generator) crowd(ctx context.Context, wg *sync.WaitGroup, clients int, step func(context.Context, *client)) {
	for range clients {
		c := g.client()
		wg.Go(func() {
			defer c.http.CloseIdleConnections()
			for ctx.Err() == nil {
				step(ctx, c)
			}
		})
	}
}

// paced makes a step that runs rate times per second in all clients together, evenly; 0 means as
// often as the clients can. If no client is free a step is late, not lost; late counts those more
// than a second late.
func paced(rate float64, late *atomic.Int64, step func(context.Context, *client)) func(context.Context, *client) {
	begin := time.Now()
	var next atomic.Int64
	return func(ctx context.Context, c *client) {
		if rate > 0 {
			wait := time.Until(begin.Add(time.Duration(float64(next.Add(1)) / rate * float64(time.Second))))
			if wait < -time.Second {
				late.Add(1)
			}
			if testcluster.Pause(ctx, wait); ctx.Err() != nil {
				return
			}
		}
		step(ctx, c)
	}
}
