package llm

import (
	"context"
	"log/slog"
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

// usageKey is a conversation of a user, and the model that it uses.
type usageKey struct{ user, conversation, model string }

// pendingUsage is what is not reported yet.
type pendingUsage struct {
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
	pending map[usageKey]pendingUsage
	// charged are the charges of requests in progress, by conversation.
	charged map[usageKey]int64
	// sent is the report under way. Its outcome may be unknown, so it is repeated under its id. held has
	// the usage of that report, or of the last report while none is under way. applied is the index at
	// which the last report was applied.
	sent    *fsm.Command
	held    map[usageKey]fsm.ModelUsage
	applied uint64
	// single are the entries of a report that was refused: each is proposed by itself.
	single []fsm.LLMReport
}

func newSpending(c Cluster, clock func() time.Time) *spending {
	return &spending{
		cluster: c,
		clock:   clock,
		pending: map[usageKey]pendingUsage{},
		charged: map[usageKey]int64{},
		held:    map[usageKey]fsm.ModelUsage{},
	}
}

// leave ends the charge of a request in progress and counts its use.
func (s *spending) leave(w usageKey, charge int64, used fsm.ModelUsage, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := (usageKey{user: w.user, conversation: w.conversation}); charge > 0 {
		if s.charged[by] -= charge; s.charged[by] <= 0 {
			delete(s.charged, by)
		}
	}
	was := s.pending[w]
	if was.since.IsZero() {
		was.since = now
	}
	was.ModelUsage = was.Plus(used)
	s.pending[w] = was
}

// costs are those of a user and of a conversation.
type costs struct{ user, task int64 }

// unreported returns what this node counted beyond the view, and the charges of requests in progress.
// The caller holds the mutex.
func (s *spending) unreported(w usageKey, v *fsm.View) (spent, charged costs) {
	count := func(to *costs, of usageKey, cost int64) {
		if of.user == w.user {
			to.user += cost
		}
		if of.user == w.user && of.conversation == w.conversation {
			to.task += cost
		}
	}
	for of, used := range s.pending {
		count(&spent, of, used.Cost)
	}
	for of, used := range s.held {
		if s.sent != nil || len(s.single) > 0 || v.Index() < s.applied {
			count(&spent, of, used.Cost)
		}
	}
	for of, charge := range s.charged {
		count(&charged, of, charge)
	}
	return spent, charged
}

// enter charges a request until leave. It refuses one whose budget is used up, or would be by the
// charges of other requests in progress. Its own charge refuses no request.
func (s *spending) enter(gr *grant, charge int64) error {
	w := usageKey{user: gr.row.UserID, conversation: gr.claim.Conversation}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(w, gr); err != nil {
		return err
	}
	if charge > 0 {
		s.charged[w] += charge
	}
	return nil
}

// check judges the budgets. The caller holds the mutex.
func (s *spending) check(w usageKey, gr *grant) error {
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
	spent, charged := s.unreported(w, gr.view)
	spent.user += gr.view.User(w.user).SpentOn(fsm.DayOf(now))
	if c := gr.view.Conversation(w.user, w.conversation); c != nil {
		spent.task += c.Models.Cost
	}
	if over(spent.task, perTask) {
		return refuse(http.StatusTooManyRequests, reasonBudget,
			"the conversation has used its budget: %.2f of %.2f US dollars (max_budget_per_task of the settings, "+
				"or llm { budgets { per_task } })", float64(spent.task)/fsm.Dollar, perTask)
	}
	if over(spent.user, perDay) {
		refused := refuse(http.StatusTooManyRequests, reasonBudget,
			"the user has used the budget of the day: %.2f of %.2f US dollars (llm { budgets { per_user_day } }); "+
				"it begins again at 00:00 UTC", float64(spent.user)/fsm.Dollar, perDay)
		refused.retryAfter = now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now)
		return refused
	}
	if over(spent.task+charged.task, perTask) || over(spent.user+charged.user, perDay) {
		refused := refuse(http.StatusTooManyRequests, reasonBudget,
			"requests in progress may use up the budget (%.2f US dollars at most): try again when they have ended",
			float64(charged.user)/fsm.Dollar)
		refused.retryAfter = progressRetry
		return refused
	}
	return nil
}

// progressRetry is when to ask again while requests in progress have the rest of a budget.
const progressRetry = 5 * time.Second

// over reports whether a budget, in dollars, is used up; 0 is none.
func over(spent int64, budget float64) bool {
	return budget > 0 && float64(spent) >= budget*fsm.Dollar
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
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	for cmd := s.next(v, s.clock()); cmd != nil; cmd = s.nextSingle(s.clock()) {
		res, err := s.cluster.Propose(ctx, *cmd)
		switch fsm.CodeOf(err) {
		case "", fsm.CodeInvalid, fsm.CodeConflict, fsm.CodeUnauthorized, fsm.CodeProtocol:
		default:
			return // the same command again
		}
		if lost := s.ended(res.Index, err != nil); lost > 0 {
			log.Warn("a report of what models were used for was refused and is lost", "count", lost, "error", err)
		}
	}
}

// ended notes that a report was applied or refused. The entries of one that was refused are proposed
// one by one. It returns how many are lost.
func (s *spending) ended(index uint64, refused bool) (lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := s.sent.Body.(*fsm.LLMReportBody) // send made it
	s.sent = nil
	switch {
	case !refused:
		s.applied = max(s.applied, index)
		return 0
	case len(body.Entries) > 1:
		s.single = body.Entries
		return 0
	}
	for _, e := range body.Entries {
		delete(s.held, usageKey{e.UserID, e.ConversationID, e.Model})
	}
	return len(body.Entries)
}

// nextSingle returns a report of one entry of a report that was refused, nil for none.
func (s *spending) nextSingle(now time.Time) *fsm.Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.single) == 0 {
		return nil
	}
	return s.sendSingle(now)
}

// sendSingle makes a report of one entry. The caller holds the mutex.
func (s *spending) sendSingle(now time.Time) *fsm.Command {
	one := s.single[:1:1]
	s.single = s.single[1:]
	return s.send(&fsm.LLMReportBody{Entries: one}, now)
}

// send makes the report under way. The caller holds the mutex.
func (s *spending) send(body *fsm.LLMReportBody, now time.Time) *fsm.Command {
	cmd := fsm.NewCommand(uuid.NewString(), now, "", body)
	s.sent = &cmd
	return s.sent
}

// next returns the report under way, or a new one of what waits; nil for nothing.
func (s *spending) next(v *fsm.View, now time.Time) *fsm.Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent != nil {
		return s.sent
	}
	if len(s.single) > 0 {
		return s.sendSingle(now)
	}
	if v.Index() < s.applied {
		return nil // what the last one had still counts here
	}
	clear(s.held)
	body := &fsm.LLMReportBody{}
	for w, used := range s.pending {
		if v.Conversation(w.user, w.conversation) == nil && now.Sub(used.since) < startGrace &&
			v.StartTaskByConversation(w.user, w.conversation) != nil {
			continue
		}
		if len(body.Entries) == maxReport {
			break
		}
		body.Entries = append(body.Entries,
			fsm.LLMReport{UserID: w.user, ConversationID: w.conversation, Model: w.model, Usage: used.ModelUsage})
		s.held[w] = used.ModelUsage
		delete(s.pending, w)
	}
	if len(body.Entries) == 0 {
		return nil
	}
	return s.send(body, now)
}
