package operators

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func newUserBody(u *fsm.User, used fsm.Usage) wire.User {
	b := wire.User{ID: u.ID, CreatedAt: wire.At(u.CreatedAt), DisabledAt: wire.TimeOrNull(u.DisabledAt),
		Usage: wire.Usage{
			Running: used.Running,
			Total:   used.Total,
			CPU:     used.CPU,
			Memory:  used.Memory,
			State:   used.StateBytes,
			Events:  used.EventBytes,
		}}
	if p := u.Policy; p != nil {
		b.Policy = new(wire.PolicyOf(*p))
	}
	if u.Limits != nil {
		l := wire.Limits(*u.Limits)
		b.Limits = &l
	}
	return b
}

// UserList handles GET /api/v1/operator/users.
func (s *Server) UserList(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows := v.Users()
	items := make([]wire.User, len(rows))
	for i, row := range rows {
		items[i] = newUserBody(row, v.Usage(row.ID))
	}
	return response.OK(wire.NewPage(items, ""))
}

// UserPut handles PUT /api/v1/operator/users/{id}: {"policy": {…} or null, "limits": {…} or
// null} replaces the user's own policy and limits.
func (s *Server) UserPut(c *request.Call) (response.Response, error) {
	o := c.Object().Masked()
	body := &fsm.UserConfigureBody{UserID: c.Params.ByName("id"), Policy: ReadPolicy(o), Limits: ReadLimits(o, "limits")}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := fsm.Validate(body); err != nil {
		return response.Response{}, err
	}
	was, err := c.View()
	if err == nil {
		err = keepsLimits(was, body.Limits)
	}
	if err != nil {
		return response.Response{}, err
	}
	res, err := c.Propose(body)
	if err != nil {
		return response.Response{}, response.NotFoundAs(err, "User not found")
	}
	if res.User == nil {
		return response.Response{}, request.ErrEmptyResult(fsm.UserConfigure)
	}
	v, err := c.After()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(newUserBody(res.User, v.Usage(res.User.ID)))
}

// UserDisable handles POST /api/v1/operator/users/{id}/disable.
func (s *Server) UserDisable(c *request.Call) (response.Response, error) {
	return s.changeUser(c, &fsm.UserDisableBody{UserID: c.Params.ByName("id")})
}

// UserEnable handles POST /api/v1/operator/users/{id}/enable.
func (s *Server) UserEnable(c *request.Call) (response.Response, error) {
	return s.changeUser(c, &fsm.UserEnableBody{UserID: c.Params.ByName("id")})
}

// UserDelete handles DELETE /api/v1/operator/users/{id}. The command removes what the state
// has. The values in the secret store are deleted after it; what can't be deleted now is left to the
// collector, because nothing refers to it any more.
func (s *Server) UserDelete(c *request.Call) (response.Response, error) {
	id := c.Params.ByName("id")
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return response.Response{}, err
	}
	paths := map[string]bool{}
	for _, ref := range v.SecretsOf(id) {
		paths[ref.Path] = true
	}
	if _, err := c.Propose(&fsm.UserDeleteBody{UserID: id}); err != nil {
		return response.Response{}, response.NotFoundAs(err, "User not found")
	}
	c.Renew()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if err := s.Secrets.Delete(c.Ctx(), path); err != nil {
			s.Log.Warn("a deleted user's secret is left to the collector", "path", path, "error", err)
		}
	}
	return response.OK(wire.Success{Success: true})
}

// changeUser runs a command on a user and answers with the user.
func (s *Server) changeUser(c *request.Call, body fsm.Body) (response.Response, error) {
	out, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return body, request.SecretWrites{}, nil
	}, func(res fsm.Result) (response.Response, error) {
		if res.User == nil {
			return response.Response{}, request.ErrEmptyResult(body.CommandType())
		}
		v, err := c.After()
		if err != nil {
			return response.Response{}, err
		}
		return response.OK(newUserBody(res.User, v.Usage(res.User.ID)))
	})
	return out, response.NotFoundAs(err, "User not found")
}

// ReadPolicy reads the member policy; nil if absent or null.
func ReadPolicy(o decode.Object) *fsm.Policy {
	p, there := o.Object("policy")
	if !there {
		return nil
	}
	p.Strict("idle_timeout", "max_running", "delete_paused_after")
	return &fsm.Policy{
		IdleTimeout:       readPolicyTime(p, "idle_timeout"),
		MaxRunning:        readPolicyTime(p, "max_running"),
		DeletePausedAfter: readPolicyTime(p, "delete_paused_after"),
	}
}

// readPolicyTime reads a duration or "never" (-1); absent and null are 0.
func readPolicyTime(o decode.Object, name string) time.Duration {
	s := o.Text(name, fsm.MaxName)
	switch {
	case s == nil:
		return 0
	case *s == wire.PolicyNever:
		return -1
	}
	d, err := time.ParseDuration(*s)
	if err != nil || d <= 0 {
		o.Rule(name, fmt.Sprintf("must be a duration such as %q, or %q", "1h30m", wire.PolicyNever))
		return 0
	}
	return d
}

// keepsLimits refuses limits that the cluster's protocol version does not keep yet.
func keepsLimits(v *fsm.View, l *fsm.Limits) error {
	if l != nil && l.EventBytes > 0 && !v.Active(fsm.VersionEvents) {
		return fsm.NeedsVersion("setting event_bytes", fsm.VersionEvents, v.ProtocolVersion())
	}
	return nil
}

// ReadLimits reads a member with limits; nil if absent or null.
func ReadLimits(o decode.Object, name string) *fsm.Limits {
	l, there := o.Object(name)
	if !there {
		return nil
	}
	l.Strict("running_sandboxes", "total_sandboxes", "starts_per_minute", "cpu", "memory", "state_bytes", "event_bytes")
	count := func(name string) int { return int(decode.OrZero(l.Integer(name))) }
	return &fsm.Limits{
		Running: count("running_sandboxes"), Total: count("total_sandboxes"),
		StartsPerMinute: count("starts_per_minute"), CPU: count("cpu"), Memory: count("memory"),
		StateBytes: count("state_bytes"), EventBytes: count("event_bytes"),
	}
}
