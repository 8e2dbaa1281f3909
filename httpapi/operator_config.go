package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/git"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func (s *Server) newConfigBody(v *fsm.View) wire.Config {
	i := s.installation(v)
	b := wire.Config{
		Index:  v.ConfigIndex(),
		Policy: newPolicyBody(i.Policy),
		Limits: wire.ConfigLimits{
			User:         wire.Limits(i.PerUser),
			Installation: wire.Limits(i.Overall),
			OnLimit:      string(i.OnLimit),
		},
		Git:  wire.ConfigGit{VerifyTokens: !i.Git.Unverified, AllowedHosts: append([]string{}, i.Git.AllowedHosts...)},
		CORS: wire.ConfigCORS{Origins: append([]string{}, i.CORS.Origins...)},
	}
	b.Limits.OnLimit = cmp.Or(b.Limits.OnLimit, string(fsm.OnLimitRefuse))
	if v.Active(fsm.VersionModels) {
		b.LLM = newConfigLLMBody(i.LLM)
	}
	return b
}

// installation is the configuration that this node works by. What a cluster below VersionConfig does
// not keep is of the node's own file.
func (s *Server) installation(v *fsm.View) fsm.Installation {
	i := v.Installation()
	if v.ConfigIndex() == 0 {
		i.Git = fsm.Git{Unverified: !s.cfg.Git.VerifyTokens, AllowedHosts: s.cfg.Git.AllowedHosts}
		i.CORS.Origins = s.cfg.CORSOrigins
	}
	return i
}

// shared is what a node makes of the cluster's configuration at one index.
type shared struct {
	index   uint64
	git     *git.Verifier
	origins []string
}

// sharedNow returns that of this node's own store.
func (s *Server) sharedNow() *shared {
	last := s.shared.Load()
	v, err := s.cluster.View(context.Background(), cluster.Stale)
	if err != nil || last.index == v.ConfigIndex() {
		return last
	}
	next := s.newShared(s.installation(v), v.ConfigIndex())
	s.shared.Store(next)
	return next
}

func (s *Server) newShared(i fsm.Installation, index uint64) *shared {
	cfg := s.cfg.Git
	cfg.VerifyTokens, cfg.AllowedHosts = !i.Git.Unverified, i.Git.AllowedHosts
	return &shared{
		index:   index,
		origins: i.CORS.Origins,
		git: git.NewVerifier(cfg,
			func(ctx context.Context, ref fsm.SecretRef) (string, error) {
				return s.calls.ReadSecret(ctx, ref, "token")
			}),
	}
}

// handleConfigGet handles GET /api/v1/operator/config.
func (s *Server) handleConfigGet(c *call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	return response.OK(s.newConfigBody(v))
}

// handleConfigPut handles PUT /api/v1/operator/config. It replaces the whole configuration; an absent
// member is reset. With ?cas=N it is refused unless N is the index that is in force.
func (s *Server) handleConfigPut(c *call) (response.Response, error) {
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
	if _, err := c.Propose(body); err != nil {
		return response.Response{}, err
	}
	v, err := c.After()
	if err != nil {
		return response.Response{}, err
	}
	c.logConfigured(was, body.Installation, v.ConfigIndex())
	return response.OK(s.newConfigBody(v))
}

// readInstallation reads the members of a configuration.
func readInstallation(o decode.Object) (i fsm.Installation) {
	if p := readPolicy(o); p != nil {
		i.Policy = *p
	}
	if l, there := o.Object("limits"); there {
		l.Strict("user", "installation", "on_limit")
		if of := readLimits(l, "user"); of != nil {
			i.PerUser = *of
		}
		if of := readLimits(l, "installation"); of != nil {
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
func (c *call) logConfigured(was *fsm.View, now fsm.Installation, index uint64) {
	var changes []string
	for _, d := range c.server.installation(was).Differences(now) {
		changes = append(changes, fmt.Sprintf("%s = %s (was %s)", d.Name, d.Wants, d.Has))
	}
	c.server.log.Info("cluster configuration set", "act", "config.set", "key", c.KeyID(was), "operator", c.Caller.User,
		"index", index, "settings", strings.Join(changes, ", "))
}
