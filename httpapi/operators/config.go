package operators

import (
	"fmt"
	"math"
	"strings"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func (s *Server) newConfigBody(v *fsm.View) wire.Config {
	b := wire.ConfigOf(s.Installation(v))
	if b.Index = v.ConfigIndex(); !v.Active(fsm.VersionModels) {
		b.LLM = nil
	}
	return b
}

// ConfigGet handles GET /api/v1/operator/config.
func (s *Server) ConfigGet(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(s.newConfigBody(v))
}

// ConfigPut handles PUT /api/v1/operator/config. It replaces the whole configuration; an absent
// member is reset. With ?cas=N it is refused unless N is the index that is in force.
func (s *Server) ConfigPut(c *request.Call) (response.Response, error) {
	o := c.Object()
	body := &fsm.InstallationConfigureBody{Installation: readInstallation(o)}
	if index := c.Query.Integer("cas", -1, -1, math.MaxInt64); index >= 0 {
		body.CheckIndex = new(uint64(index))
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if err := fsm.Validate(body); err != nil {
		return response.Response{}, err
	}
	was, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return response.Response{}, err
	}
	if !was.Active(fsm.VersionConfig) && (body.CheckIndex != nil || o.Has("git") || o.Has("cors")) {
		return response.Response{}, fsm.NeedsVersion("setting git, cors or cas", fsm.VersionConfig, was.ProtocolVersion())
	}
	if !was.Active(fsm.VersionModels) && o.Has("llm") {
		return response.Response{}, fsm.NeedsVersion("setting llm", fsm.VersionModels, was.ProtocolVersion())
	}
	if l := body.Installation.LLM; !was.Active(fsm.VersionServers) && len(l.Servers)+len(l.Profiles) > 0 {
		return response.Response{}, fsm.NeedsVersion("setting llm's servers and profiles", fsm.VersionServers,
			was.ProtocolVersion())
	}
	if err := keepsLimits(was, &body.Installation.PerUser); err != nil {
		return response.Response{}, err
	}
	if _, err := c.Propose(body); err != nil {
		return response.Response{}, err
	}
	v, err := c.After()
	if err != nil {
		return response.Response{}, err
	}
	s.logConfigured(c, was, body.Installation, v.ConfigIndex())
	return response.OK(s.newConfigBody(v))
}

// readInstallation reads the members of a configuration.
func readInstallation(o decode.Object) (i fsm.Installation) {
	if p := ReadPolicy(o); p != nil {
		i.Policy = *p
	}
	if l, there := o.Object("limits"); there {
		l.Strict("user", "installation", "on_limit")
		if of := ReadLimits(l, "user"); of != nil {
			i.PerUser = *of
		}
		if of := ReadLimits(l, "installation"); of != nil {
			i.Overall = *of
		}
		if on := l.Text("on_limit", fsm.MaxName); on != nil {
			i.OnLimit = fsm.OnLimit(*on)
		}
	}
	if g, there := o.Object("git"); there {
		g.Strict("verify_tokens", "allowed_hosts")
		i.Git.Unverified = !g.BooleanOr("verify_tokens", true)
		i.Git.AllowedHosts = g.Texts("allowed_hosts", fsm.MaxText)
	}
	if w, there := o.Object("cors"); there {
		w.Strict("origins")
		i.CORS.Origins = w.Texts("origins", fsm.MaxText)
	}
	i.LLM = readLLM(o)
	return i
}

// logConfigured logs what an operator changed, with the id of the key.
func (s *Server) logConfigured(c *request.Call, was *fsm.View, now fsm.Installation, index uint64) {
	var changes []string
	for _, d := range s.Installation(was).Differences(now) {
		changes = append(changes, fmt.Sprintf("%s = %s (was %s)", d.Name, d.Wants, d.Has))
	}
	s.Log.Info("cluster configuration set", "act", "config.set", "key", c.KeyID(was), "operator", c.Caller.User,
		"index", index, "settings", strings.Join(changes, ", "))
}
