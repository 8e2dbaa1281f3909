package llm

import (
	"context"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// Bounds of what waits to be reported.
const (
	maxReport = 500
	// reportTime bounds one report.
	reportTime = 10 * time.Second
	// startGrace is how long the use of a conversation that is still being started waits for it.
	startGrace = 15 * time.Minute
)

// who is a conversation of a user, and the model that it uses.
type who struct{ user, conversation, model string }

// waiting is what is not reported yet.
type waiting struct {
	fsm.ModelUsage
	since time.Time
}

// spending counts what models were used for and reports it to the cluster. Budgets are judged by
// the reports of all nodes and what this node has not reported yet, so another node's requests of
// the last seconds are missing.
type spending struct {
	cluster Cluster
	clock   func() time.Time
	mu      sync.Mutex
	pending map[who]waiting
	// sent is the report under way: its outcome may be unknown, so it is repeated under its id. held is
	// what it has, or what the last one had; applied is that one's index.
	sent    *fsm.Command
	held    map[who]fsm.ModelUsage
	applied uint64
}

func newSpending(c Cluster, clock func() time.Time) *spending {
	return &spending{cluster: c, clock: clock, pending: map[who]waiting{}, held: map[who]fsm.ModelUsage{}}
}

// add counts a use.
func (s *spending) add(w who, used fsm.ModelUsage, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.pending[w]
	if was.since.IsZero() {
		was.since = now
	}
	was.ModelUsage = was.Plus(used)
	s.pending[w] = was
}

// unreported returns what this node counted beyond the view: for the user and the conversation.
func (s *spending) unreported(w who, v *fsm.View) (user, conversation int64) {
	count := func(of who, cost int64) {
		if of.user == w.user {
			user += cost
		}
		if of.user == w.user && of.conversation == w.conversation {
			conversation += cost
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, used := range s.pending {
		count(of, used.Cost)
	}
	for of, used := range s.held {
		if s.applied == 0 || v.Index() < s.applied {
			count(of, used.Cost)
		}
	}
	return user, conversation
}

// check refuses a request whose budget is used up.
func (s *spending) check(gr *grant) error {
	w := who{user: gr.row.UserID, conversation: gr.claim.Conversation}
	perTask, perDay := gr.policy.Budgets.PerTask, gr.policy.Budgets.PerUserDay
	if gr.settings != nil && gr.settings.Values.MaxBudgetPerTask != nil {
		if own := *gr.settings.Values.MaxBudgetPerTask; own > 0 && (perTask == 0 || own < perTask) {
			perTask = own
		}
	}
	if perTask == 0 && perDay == 0 {
		return nil
	}
	now := s.clock()
	user, task := s.unreported(w, gr.view)
	user += gr.view.User(w.user).SpentOn(fsm.DayOf(now))
	if c := gr.view.Conversation(w.user, w.conversation); c != nil {
		task += c.Models.Cost
	}
	if over(task, perTask) {
		return refuse(http.StatusTooManyRequests, reasonBudget,
			"the conversation has used its budget: %.2f of %.2f US dollars (max_budget_per_task of the settings, or llm { budgets { per_task } })", float64(task)/fsm.Dollar, perTask)
	}
	if over(user, perDay) {
		refused := refuse(http.StatusTooManyRequests, reasonBudget,
			"the user has used the budget of the day: %.2f of %.2f US dollars (llm { budgets { per_user_day } }); it begins again at 00:00 UTC", float64(user)/fsm.Dollar, perDay)
		refused.retryAfter = now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now)
		return refused
	}
	return nil
}

// over reports whether a budget, in dollars, is used up; 0 is none.
func over(spent int64, budget float64) bool {
	return budget > 0 && float64(spent) >= budget*fsm.Dollar
}

// costOf returns the cost of tokens in billionths of a dollar.
func costOf(price *fsm.Price, t tokens) int64 {
	if price == nil {
		return 0
	}
	cached, written := price.Input, price.Input
	if price.CachedInput != nil {
		cached = *price.CachedInput
	}
	if price.CacheWrite != nil {
		written = *price.CacheWrite
	}
	plain := max(0, t.Input-t.Cached-t.Written)
	// A dollar for a million tokens is a thousand billionths for one.
	sum := float64(plain)*price.Input + float64(t.Cached)*cached + float64(t.Written)*written + float64(t.Output)*price.Output
	return int64(math.Min(math.Ceil(sum*1000), 1<<59))
}

// run reports until ctx ends, and then once more.
func (s *spending) run(ctx context.Context, every time.Duration, log *slog.Logger) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.report(ctx, log)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			s.report(last, log)
			return
		}
	}
}

// report proposes what waits. Without a leader it stays for the next time.
func (s *spending) report(ctx context.Context, log *slog.Logger) {
	v, err := s.cluster.View(ctx, cluster.Stale)
	if err != nil || !v.Active(fsm.VersionModels) {
		return
	}
	cmd := s.next(v, s.clock())
	if cmd == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	res, err := s.cluster.Propose(ctx, *cmd)
	switch fsm.CodeOf(err) {
	case "":
	case fsm.CodeInvalid, fsm.CodeConflict, fsm.CodeUnauthorized, fsm.CodeProtocol:
		log.Warn("a report of what models were used for was refused and is lost", "error", err)
	default:
		return // the same command again
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent, s.applied = nil, res.Index
	if err != nil {
		clear(s.held)
	}
}

// next returns the report under way, or a new one of what waits; nil for nothing.
func (s *spending) next(v *fsm.View, now time.Time) *fsm.Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent != nil {
		return s.sent
	}
	if v.Index() < s.applied {
		return nil // what the last one had still counts here
	}
	clear(s.held)
	s.applied = 0
	body := &fsm.LLMReportBody{}
	for w, used := range s.pending {
		if v.Conversation(w.user, w.conversation) == nil && now.Sub(used.since) < startGrace && v.StartTaskByConversation(w.user, w.conversation) != nil {
			continue
		}
		if len(body.Entries) == maxReport {
			break
		}
		body.Entries = append(body.Entries, fsm.LLMReport{UserID: w.user, ConversationID: w.conversation, Model: w.model, Usage: used.ModelUsage})
		s.held[w] = used.ModelUsage
		delete(s.pending, w)
	}
	if len(body.Entries) == 0 {
		return nil
	}
	cmd := fsm.NewCommand(uuid.NewString(), now, "", body)
	s.sent = &cmd
	return s.sent
}

// count counts a request that was sent, once.
func (q *request) count(status int, used tokens, first time.Duration) {
	if q.counted {
		return
	}
	q.counted = true
	cost, took := costOf(q.policy.PriceOf(q.name), used), time.Since(q.began)
	label := q.gateway.metrics.answered(q.name, status, used, float64(cost)/fsm.Dollar, first, took)
	if !q.generates {
		return
	}
	u := fsm.ModelUsage{Requests: 1, Input: used.Input, Output: used.Output, Cached: used.Cached, Cost: cost, Milliseconds: took.Milliseconds()}
	if status/100 != 2 {
		u.Errors = 1
	}
	spent := q.gateway.spent
	spent.add(who{q.row.UserID, q.claim.Conversation, label}, u, spent.clock())
}

// abandoned counts a request whose client left before there was an answer.
func (q *request) abandoned() { q.count(0, tokens{}, 0) }
