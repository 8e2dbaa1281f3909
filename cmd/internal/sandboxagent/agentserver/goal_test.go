package agentserver

import (
	"fmt"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

const judged = "You check whether"

// goals are the states of the conversation's goals: the status, the round, and what is missing.
func (s *server) goals() (list []string) {
	s.t.Helper()
	events, err := s.s.conversations.Get(convID).Events()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range events {
		u, is := e.(*event.StateUpdate)
		if !is || u.Key != "goal" {
			continue
		}
		v := decodeJSON[struct {
			Active    bool
			Status    string
			Iteration int
			Objective string
			Max       int `json:"max_iterations"`
			Verdict   *struct{ Missing string }
		}](s.t, string(u.Value))
		if v.Objective != "Be done" || v.Active != (v.Status == "running") {
			s.t.Errorf("a state is %s", u.Value)
		}
		text := fmt.Sprintf("%s %d/%d", v.Status, v.Iteration, v.Max)
		if v.Verdict != nil {
			text += " " + v.Verdict.Missing
		}
		list = append(list, strings.TrimSpace(text))
	}
	return list
}

// pursuing is a native conversation that has answered, and the model with a judge's answers.
func pursuing(t *testing.T, data string, verdicts ...modeltest.Answer) (*server, *modeltest.Server) {
	t.Helper()
	m := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{System: "Write a title"}, Answers: []modeltest.Answer{modeltest.Text("A title")}},
		{When: modeltest.When{User: judged}, Answers: verdicts, InOrder: true},
		{Answers: []modeltest.Answer{modeltest.Text("Worked.")}},
	}})
	s := serveAt(t, data, nativeEngine)
	s.converse(t.TempDir(), m, nil, nil)
	s.settled(convID)
	return s, m
}

func (s *server) reaches(want ...string) {
	s.t.Helper()
	s.until(want[len(want)-1], func() bool { return len(s.goals()) >= len(want) })
	if got := s.goals(); strings.Join(got, ", ") != strings.Join(want, ", ") {
		s.t.Errorf("the goal was %q, want %q", got, want)
	}
}

// TestGoal_Rounds goes on until the judge is content, or the rounds are over. An answer of the judge that
// can't be read ends no goal.
func TestGoal_Rounds(t *testing.T) {
	verdict := modeltest.Text
	for name, c := range map[string]struct {
		verdicts []modeltest.Answer
		rounds   string
		want     []string
		messages int
	}{
		"complete": {[]modeltest.Answer{
			verdict("```json\n{\"score\":0.4,\"complete\":false,\"missing\":\"the test\"}\n```"), verdict("Well, I think so."),
			verdict(`{"score":1,"complete":true,"missing":""}`),
		}, "", []string{"running 0/10", "running 1/10 the test", "running 2/10 The judge's answer could not be read.",
			"complete 3/10"}, 4},
		"capped": {[]modeltest.Answer{verdict(`{"score":0,"missing":"all"}`)}, `,"max_iterations":2`,
			[]string{"running 0/2", "running 1/2 all", "capped 2/2 all"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := pursuing(t, t.TempDir(), c.verdicts...)
			s.want(200, "POST", convPath+"/goal", `{"objective":"Be done"`+c.rounds+`}`)
			s.reaches(c.want...)
			s.want(400, "POST", convPath+"/goal/resume", "")
			messages, seen := 0, ""
			for _, r := range m.Requests() {
				if strings.Contains(r.LastUser(), judged) {
					seen = r.LastUser()
				}
			}
			for _, k := range s.kinds(convID) {
				messages += strings.Count(k, event.KindMessage)
			}
			if messages != 2*c.messages {
				t.Errorf("%d messages, want %d: %q", messages, 2*c.messages, s.kinds(convID))
			}
			if !strings.Contains(seen, "Be done") || !strings.Contains(seen, "assistant: Worked.") ||
				strings.Contains(seen, "system: ") {
				t.Errorf("the judge was asked %q", seen)
			}
		})
	}
}

// TestGoal_Interrupted leaves a goal by a stop, a message, a pause and a restart; each time it can be
// resumed at its round.
func TestGoal_Interrupted(t *testing.T) {
	data, hold := t.TempDir(), make(chan struct{})
	defer close(hold)
	never := modeltest.Answer{Text: "{}", Hold: hold}
	s, m := pursuing(t, data, modeltest.Text(`{"score":0,"missing":"all"}`), never)
	judging := func(n int) {
		t.Helper()
		s.until("the judge", func() bool {
			count := 0
			for _, r := range m.Requests() {
				count += strings.Count(r.LastUser(), judged)
			}
			return count == n
		})
	}
	want := []string{"running 0/10", "running 1/10 all"}
	s.want(200, "POST", convPath+"/goal", `{"objective":"Be done"}`)
	judging(2)
	s.age()
	if idle := s.idleTime(); idle != 0 {
		t.Errorf("while it is judged the sandbox is idle for %d s", idle)
	}
	s.want(409, "POST", convPath+"/goal", `{"objective":"Be done"}`)
	s.want(409, "POST", convPath+"/goal/resume", "")
	for n, leave := range []func(){
		func() { s.want(200, "POST", convPath+"/goal/stop", "") },
		func() {
			s.want(200, "POST", convPath+"/events", `{"content":"something else","run":true}`)
			s.settled(convID)
		},
		func() { s.want(200, "POST", convPath+"/pause", "") },
		func() {
			s.http.Close()
			s.s.close()
			s = serveAt(t, data, nativeEngine)
		},
	} {
		leave()
		want = append(want, "interrupted 1/10")
		s.reaches(want...)
		s.want(200, "POST", convPath+"/goal/resume", "")
		want = append(want, "running 1/10")
		judging(3 + n)
		s.reaches(want...)
	}
}
