package httpapi

import (
	"context"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/git"
)

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
	v, err := s.cluster.View(context.Background(), cluster.Local)
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
