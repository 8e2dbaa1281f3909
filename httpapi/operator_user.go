package httpapi

import (
	"fmt"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// userBody is a user as operators see it: what is set for this user alone, null
// where nothing is, and what the user's sandboxes come to.
type userBody struct {
	ID        string      `json:"id"`
	CreatedAt wireTime    `json:"created_at"`
	Policy    *policyBody `json:"policy"`
	Limits    *limitsBody `json:"limits"`
	Usage     usageBody   `json:"usage"`
}

// policyBody is a policy: durations as Go writes them ("1h30m0s"), "never", or
// null for what is inherited.
type policyBody struct {
	IdleTimeout       *string `json:"idle_timeout"`
	MaxRunning        *string `json:"max_running"`
	DeletePausedAfter *string `json:"delete_paused_after"`
}

// limitsBody are limits by the names of the 429 answers; 0 is none.
type limitsBody struct {
	Running         int `json:"running_sandboxes"`
	Total           int `json:"total_sandboxes"`
	StartsPerMinute int `json:"starts_per_minute"`
	CPU             int `json:"cpu"`
	Memory          int `json:"memory"`
}

// usageBody is what limitsBody bounds, as it is now.
type usageBody struct {
	Running int `json:"running_sandboxes"`
	Total   int `json:"total_sandboxes"`
	CPU     int `json:"cpu"`
	Memory  int `json:"memory"`
}

func newUserBody(u *fsm.User, used fsm.Usage) userBody {
	b := userBody{ID: u.ID, CreatedAt: wireTime(u.CreatedAt),
		Usage: usageBody{Running: used.Running, Total: used.Total, CPU: used.CPU, Memory: used.Memory}}
	if p := u.Policy; p != nil {
		b.Policy = &policyBody{policyTime(p.IdleTimeout), policyTime(p.MaxRunning), policyTime(p.DeletePausedAfter)}
	}
	if u.Limits != nil {
		l := limitsBody(*u.Limits)
		b.Limits = &l
	}
	return b
}

// policyNever is a policy's word for something that does not happen by itself.
const policyNever = "never"

func policyTime(d time.Duration) *string {
	switch {
	case d == 0:
		return nil
	case d < 0:
		return new(policyNever)
	}
	return new(d.String())
}

// handleUserList handles GET /api/v1/operator/users.
func (s *Server) handleUserList(c *call) (answer, error) {
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	rows := v.Users()
	items := make([]userBody, len(rows))
	for i, row := range rows {
		items[i] = newUserBody(row, v.Usage(row.ID))
	}
	return ok(newPage(items, ""))
}

// handleUserPut handles PUT /api/v1/operator/users/{id}: {"policy": {…} or null,
// "limits": {…} or null} become what is set for this user alone.
func (s *Server) handleUserPut(c *call) (answer, error) {
	o := c.object().masked()
	body := &fsm.UserConfigureBody{UserID: c.params.ByName("id"), Policy: readPolicy(o), Limits: readLimits(o, "limits")}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	if err := body.Validate(); err != nil {
		return answer{}, err
	}
	res, err := c.propose(body)
	if err != nil {
		return answer{}, notFoundAs(err, "User not found")
	}
	if res.User == nil {
		return answer{}, errEmptyResult(fsm.UserConfigure)
	}
	v, err := c.after()
	if err != nil {
		return answer{}, err
	}
	return ok(newUserBody(res.User, v.Usage(res.User.ID)))
}

// readPolicy reads the member policy, nil when there is none.
func readPolicy(o object) *fsm.Policy {
	p, there := o.object("policy")
	if !there {
		return nil
	}
	p.strict("idle_timeout", "max_running", "delete_paused_after")
	return &fsm.Policy{
		IdleTimeout:       p.policyTime("idle_timeout"),
		MaxRunning:        p.policyTime("max_running"),
		DeletePausedAfter: p.policyTime("delete_paused_after"),
	}
}

// policyTime reads a duration or "never"; absent and null are 0.
func (o object) policyTime(name string) time.Duration {
	s := o.text(name, maxNameText)
	switch {
	case s == nil:
		return 0
	case *s == policyNever:
		return -1
	}
	d, err := time.ParseDuration(*s)
	if err != nil || d <= 0 {
		o.rule(name, fmt.Sprintf("must be a duration such as %q, or %q", "1h30m", policyNever))
		return 0
	}
	return d
}

// readLimits reads a member of limits, nil when there is none.
func readLimits(o object, name string) *fsm.Limits {
	l, there := o.object(name)
	if !there {
		return nil
	}
	l.strict("running_sandboxes", "total_sandboxes", "starts_per_minute", "cpu", "memory")
	count := func(name string) int { return int(deref(l.integer(name))) }
	return &fsm.Limits{
		Running: count("running_sandboxes"), Total: count("total_sandboxes"),
		StartsPerMinute: count("starts_per_minute"), CPU: count("cpu"), Memory: count("memory"),
	}
}
