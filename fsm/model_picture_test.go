package fsm

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// picture describes a state as sorted lines of text.
type picture []string

// The model is of a cluster below VersionStops, where no pause lets a job run on.
func (m *model) picture() picture {
	p := picture{}
	for user, s := range m.settings {
		p = append(p,
			fmt.Sprintf("settings %s %s", user,
				words(s.Language, s.Model, s.BaseURL, s.Consent, s.Factor, s.LLM, s.Search, s.Shared, s.MCP)))
	}
	for i, s := range m.specs {
		p = append(p, fmt.Sprintf("spec %d %s %d %d", i, s.ID, s.Template.CPU, s.Pool))
	}
	for i := range m.sandboxes {
		s := &m.sandboxes[i]
		p = append(p, "sandbox "+words(s.ID, s.User, s.Spec, s.Image, s.CPU, s.Desired, s.Generation, s.Observed, s.State,
			s.Reason,
			s.Memory, s.Pool, s.Claimed, s.Key, s.Init, s.WarmKey, s.PausedBy, s.DesiredAt, time.Time{}, s.LastUse, s.Since),
			"expiry "+m.expiry(s))
	}
	for _, t := range m.tasks {
		reservation := ""
		if t.Reservation != nil {
			reservation = words(t.Reservation.CPU, t.Reservation.Memory)
		}
		p = append(p, "task "+words(t.ID, t.User, t.Conversation, t.V0, t.Sandbox, t.Status, t.Secret, t.Wish, reservation))
	}
	for _, c := range m.conversations {
		p = append(p, "conversation "+words(c.ID, c.User, c.V0, c.Sandbox, c.Parent, c.Title, c.Repository, c.Branch))
	}
	slices.Sort(p)
	return p
}

// pictureOf describes a View in the same form.
func pictureOf(v *View) picture {
	p := picture{}
	for _, user := range []string{"ada", "bob"} {
		if s := v.Settings(user); s != nil {
			x := s.Values
			p = append(p, fmt.Sprintf("settings %s %s", user, words(x.Language, x.LLMModel, x.LLMBaseURL,
				x.UserConsentsToAnalytics, x.RemoteRuntimeResourceFactor, s.LLMAPIKey, s.SearchAPIKey, s.SandboxAPIKey,
				s.MCPConfig)))
		}
		tasks, _ := v.StartTasks(user, StartTaskFilter{}, Page{})
		for _, t := range tasks {
			reservation := ""
			if t.Reservation != nil {
				reservation = words(t.Reservation.CPU, t.Reservation.Memory)
			}
			p = append(p, "task "+words(t.ID, t.UserID, t.ConversationID, t.V0ID, t.SandboxID, t.Status, !t.Secrets.IsZero(),
				valueOr(t.Request.SandboxID, ""), reservation))
		}
		conversations, _ := v.Conversations(user, ConversationFilter{IncludeSub: true}, Page{})
		for _, c := range conversations {
			p = append(p, "conversation "+words(c.ID, c.UserID, c.V0ID, c.SandboxID, valueOr(c.ParentID, ""),
				c.Title, c.SelectedRepository, c.SelectedBranch))
		}
	}
	for i, s := range v.Specs() {
		p = append(p, fmt.Sprintf("spec %d %s %d %d", i, s.ID, s.Template.CPU, s.Pool))
	}
	for s := range v.AllSandboxes() {
		p = append(p, "sandbox "+words(s.ID, s.UserID, s.SpecID, s.Template.Image, s.Template.CPU, s.Desired, s.Generation,
			s.Status.Generation, s.Status.State, s.Status.Reason, s.Template.Memory, s.Pool, s.Claimed, s.KeyRef, s.InitRef,
			s.WarmKeyRef,
			s.PausedBy, s.DesiredAt, s.StopAt, s.Status.LastActive, s.Status.Since), "expiry "+expiryOf(v, s))
	}
	slices.Sort(p)
	return p
}

// words prints values, pointers by what they point at.
func words(values ...any) string {
	var out []string
	for _, v := range values {
		switch p := v.(type) {
		case *string:
			v = fmt.Sprintf("%q", valueOr(p, "nil"))
		case *bool:
			v = "nil"
			if p != nil {
				v = *p
			}
		case time.Time:
			v = p.UnixMicro()
		case *int64:
			v = "nil"
			if p != nil {
				v = *p
			}
		}
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, " ")
}
