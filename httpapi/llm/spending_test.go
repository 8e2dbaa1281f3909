package llm

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/llmtoken"
)

// oneLog is the log that nodes share, with every view that it ever had.
type oneLog struct {
	store *fsm.Store
	index uint64
	views []*fsm.View
}

func (l *oneLog) apply(cmd fsm.Command) (fsm.Result, error) {
	l.index++
	res, err := l.store.Apply(l.index, cmd)
	l.views = append(l.views, l.store.View())
	return res, err
}

// faultyNode is a node's access to the log. Its own store is lag entries behind, and never goes back.
type faultyNode struct {
	*oneLog
	lag  int
	seen int
	fate func(fsm.Command) (before, after error)
}

func (n *faultyNode) View(_ context.Context, _ cluster.Consistency) (*fsm.View, error) {
	n.seen = max(n.seen, len(n.views)-1-n.lag)
	return n.views[n.seen], nil
}

func (n *faultyNode) Propose(_ context.Context, cmd fsm.Command) (fsm.Result, error) {
	before, after := n.fate(cmd)
	if before != nil {
		return fsm.Result{}, before
	}
	res, err := n.apply(cmd)
	if after != nil {
		return fsm.Result{}, after
	}
	return res, err
}

func (n *faultyNode) Status() cluster.Status { return cluster.Status{LastContact: time.Now()} }

// budgetRun is a run of nodes that serve one user by a random schedule, each under a conversation and
// a model of its own, so that the state says which node's use it knows.
type budgetRun struct {
	t     *testing.T
	rng   *rand.Rand
	log   *oneLog
	now   time.Time
	nodes []*countingNode
	// budget is in dollars.
	budget            float64
	admitted, refused int
}

type countingNode struct {
	name     string
	cluster  *faultyNode
	spent    *spending
	finished int64
	// open are the costs of requests in progress, which they are charged.
	open []int64
}

func newBudgetRun(t *testing.T, seed uint64) *budgetRun {
	l := &oneLog{store: fsm.NewStore()}
	r := &budgetRun{
		t:      t,
		rng:    rand.New(rand.NewPCG(seed, 0)),
		log:    l,
		now:    time.Date(2026, 11, 23, 21, 0, 0, 0, time.UTC),
		budget: 10,
	}
	must := func(body fsm.Body) {
		t.Helper()
		if _, err := l.apply(fsm.NewCommand(fmt.Sprint("setup", l.index), r.now, "", body)); err != nil {
			t.Fatal(err)
		}
	}
	must(&fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
	must(&fsm.APIKeyCreateBody{Lookup: "aaaaaaaaaaaa", Hash: fmt.Sprintf("%064d", 0), Name: "laptop", UserID: "ada"})
	for i := range 3 {
		n := &countingNode{name: fmt.Sprint("n", i+1), cluster: &faultyNode{oneLog: l}}
		n.cluster.fate = r.fate
		n.spent = newSpending(n.cluster, func() time.Time { return r.now })
		r.nodes = append(r.nodes, n)
	}
	return r
}

// fate loses a report before or after it was applied, or lets the node repeat it late.
func (r *budgetRun) fate(fsm.Command) (before, after error) {
	switch r.rng.IntN(4) {
	case 0:
		return fsm.Errorf(fsm.CodeNoLeader, "no leader"), nil
	case 1:
		return nil, fsm.Errorf(fsm.CodeOutcomeUnknown, "the leader was lost")
	}
	return nil, nil
}

// known returns what a view knows of a node's use.
func (r *budgetRun) known(v *fsm.View, node string) int64 {
	u := v.User("ada")
	if u == nil || u.Models == nil {
		return 0
	}
	for _, m := range u.Models.ByModel {
		if m.Model == node {
			return m.Usage.Cost
		}
	}
	return 0
}

// ask begins a request if the node's budget allows it. What a node admits, by what it can know, is
// below the budget: its view of all, its own use, and what its own requests in progress may cost.
func (r *budgetRun) ask(n *countingNode) {
	v, _ := n.cluster.View(r.t.Context(), cluster.Stale)
	gr := &grant{claim: llmtoken.Claim{Conversation: "c-" + n.name}, row: &fsm.Sandbox{UserID: "ada"}, view: v,
		policy: fsm.LLM{Budgets: fsm.Budgets{PerUserDay: r.budget}}}
	cost := int64(1 + r.rng.IntN(int(fsm.Dollar)))
	if n.spent.enter(gr, cost) != nil {
		r.refused++
		return
	}
	r.admitted++
	var knows int64
	for _, other := range r.nodes {
		if other != n {
			knows += r.known(v, other.name)
		}
	}
	knows += n.finished
	for _, charge := range n.open {
		knows += charge
	}
	if over(knows, r.budget) {
		r.t.Fatalf("%s admits a request although it knows of %d of %g dollars", n.name, knows/fsm.Dollar, r.budget)
	}
	n.open = append(n.open, cost)
}

// finish ends the oldest request of a node.
func (r *budgetRun) finish(n *countingNode) {
	if len(n.open) == 0 {
		return
	}
	cost := n.open[0]
	n.open = n.open[1:]
	n.finished += cost
	n.spent.leave(usageKey{"ada", "c-" + n.name, n.name}, cost, fsm.ModelUsage{Requests: 1, Cost: cost}, r.now)
}

func (r *budgetRun) report(n *countingNode) {
	n.spent.report(r.t.Context(), slog.New(slog.DiscardHandler))
}

// sum is what all nodes' ended requests cost.
func (r *budgetRun) sum() (sum int64) {
	for _, n := range r.nodes {
		sum += n.finished
	}
	return sum
}

// Three nodes count one user's costs at once while reports are lost, doubled and late and each node's
// own store is behind: nothing is counted twice or never, and no node admits a request beyond what it
// can know.
func TestSpending_ReportsAreLostDoubledAndLate(t *testing.T) {
	t.Parallel()
	admitted, refused := 0, 0
	for seed := range uint64(80) {
		r := newBudgetRun(t, seed)
		for range 400 {
			n := r.nodes[r.rng.IntN(len(r.nodes))]
			switch r.rng.IntN(8) {
			case 0, 1, 2:
				r.ask(n)
			case 3, 4:
				r.finish(n)
			case 5, 6:
				r.report(n)
			default:
				n.cluster.lag = r.rng.IntN(6)
			}
		}
		for _, n := range r.nodes { // the cluster heals
			n.cluster.lag = 0
			n.cluster.fate = func(fsm.Command) (error, error) { return nil, nil }
			for len(n.open) > 0 {
				r.finish(n)
			}
			r.report(n)
			r.report(n)
		}
		m := r.log.store.View().User("ada").Models
		if m.Total.Cost != r.sum() || m.Spent != r.sum() {
			t.Fatalf("seed %d: the state has %d and %d today, the nodes spent %d", seed, m.Total.Cost, m.Spent, r.sum())
		}
		for _, n := range r.nodes {
			if got := r.known(r.log.store.View(), n.name); got != n.finished {
				t.Fatalf("seed %d: %s spent %d, the state has %d", seed, n.name, n.finished, got)
			}
		}
		admitted, refused = admitted+r.admitted, refused+r.refused
	}
	if admitted < 1000 || refused < 1000 {
		t.Errorf("%d admitted, %d refused: the schedule tries too little", admitted, refused)
	}
}

// Without a leader each node goes by what it knew and its own use: all together spend the rest of the
// budget once for each node, and one request.
func TestSpending_WithoutALeaderTheRestIsSpentOnceByEachNode(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := newBudgetRun(t, seed)
		for _, n := range r.nodes {
			n.cluster.fate = func(fsm.Command) (error, error) { return fsm.Errorf(fsm.CodeNoLeader, "no leader"), nil }
		}
		for range 2000 {
			n := r.nodes[r.rng.IntN(len(r.nodes))]
			if len(n.open) < 2 {
				r.ask(n)
			}
			if r.rng.IntN(2) == 0 {
				r.finish(n)
			}
			r.report(n)
		}
		for _, n := range r.nodes {
			for len(n.open) > 0 {
				r.finish(n)
			}
			if most := int64(r.budget+1) * fsm.Dollar; n.finished > most || n.finished < int64(r.budget)*fsm.Dollar {
				t.Fatalf("seed %d: %s spent %d", seed, n.name, n.finished)
			}
		}
	}
}

// A day's budget begins again at midnight in UTC, for a node whose clock comes later too.
func TestSpending_TheDayChanges(t *testing.T) {
	t.Parallel()
	r := newBudgetRun(t, 1)
	n, late := r.nodes[0], r.nodes[1]
	n.cluster.fate = func(fsm.Command) (error, error) { return nil, nil }
	late.cluster.fate = n.cluster.fate
	spend := func(n *countingNode, dollars int64) {
		n.open = append(n.open, dollars*fsm.Dollar) // it was charged nothing, which its end takes for 0
		r.finish(n)
		r.report(n)
	}
	admits := func(n *countingNode, want bool) {
		t.Helper()
		was := r.admitted
		n.open = nil
		v := r.log.store.View()
		err := n.spent.enter(&grant{
			claim:  llmtoken.Claim{Conversation: "c"},
			row:    &fsm.Sandbox{UserID: "ada"},
			view:   v,
			policy: fsm.LLM{Budgets: fsm.Budgets{PerUserDay: r.budget}},
		}, 0)
		if (err == nil) != want {
			t.Errorf("%s at %s: %v", n.name, n.spent.clock(), err)
		}
		if after := refusalOf(
			err,
		); err != nil &&
			after.retryAfter != n.spent.clock().Truncate(24*time.Hour).Add(24*time.Hour).Sub(n.spent.clock()) {
			t.Errorf("Retry-After %s", after.retryAfter)
		}
		r.admitted = was
	}
	spend(n, 10)
	admits(n, false)
	r.now = time.Date(2026, 11, 23, 23, 59, 59, 999e6, time.UTC)
	admits(n, false)
	r.now = r.now.Add(time.Millisecond)
	admits(n, true)
	// The other node's clock is two seconds behind. Its report does not begin yesterday again.
	late.spent.clock = func() time.Time { return r.now.Add(-2 * time.Second) }
	spend(n, 9)
	spend(late, 1)
	admits(n, false)
	admits(late, false)
	// A zone in which it is tomorrow already changes nothing.
	r.now = time.Date(2026, 11, 25, 1, 0, 0, 0, time.FixedZone("east", 3*3600))
	admits(n, false)
	r.now = r.now.Add(2 * time.Hour)
	admits(n, true)
}

// refusing refuses reports that have the use of a conversation.
type refusing struct {
	*faultyNode
	conversation string
	proposed     []int
}

func (n *refusing) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	entries := cmd.Body.(*fsm.LLMReportBody).Entries
	n.proposed = append(n.proposed, len(entries))
	for _, e := range entries {
		if e.ConversationID == n.conversation {
			return fsm.Result{}, fsm.Errorf(fsm.CodeInvalid, "a number of a usage is out of range")
		}
	}
	return n.faultyNode.Propose(ctx, cmd)
}

// A report that is refused is proposed again entry by entry: only what is wrong is lost.
func TestSpending_ARefusedReportIsProposedSingly(t *testing.T) {
	t.Parallel()
	r := newBudgetRun(t, 1)
	n := r.nodes[0]
	n.cluster.fate = func(fsm.Command) (error, error) { return nil, nil }
	c := &refusing{faultyNode: n.cluster, conversation: "c-2"}
	n.spent = newSpending(c, func() time.Time { return r.now })
	for i := range 5 {
		n.spent.leave(usageKey{"ada", fmt.Sprint("c-", i), n.name}, 0, fsm.ModelUsage{Requests: 1, Cost: fsm.Dollar}, r.now)
	}
	admits := func() bool {
		v := r.log.store.View()
		return n.spent.enter(&grant{claim: llmtoken.Claim{Conversation: "c"}, row: &fsm.Sandbox{UserID: "ada"}, view: v,
			policy: fsm.LLM{Budgets: fsm.Budgets{PerUserDay: 4.5}}}, 0) == nil
	}
	if admits() {
		t.Error("five dollars of a budget of 4.5 are spent, and a request is admitted")
	}
	r.report(n)
	if got := r.known(r.log.store.View(), n.name); got != 4*fsm.Dollar {
		t.Errorf("the state has %d dollars of four: %v were proposed", got/fsm.Dollar, c.proposed)
	}
	if !admits() {
		t.Error("what is lost counts still")
	}
	r.report(n)
	if len(c.proposed) != 6 {
		t.Errorf("%v were proposed", c.proposed)
	}
}
