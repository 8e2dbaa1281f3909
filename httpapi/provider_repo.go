package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"

	"bivouac.dev/bivouac/fsm"
)

// repositoryName is "owner/name" (with groups on GitLab), without anything that
// could lead a URL elsewhere.
var repositoryName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$`)

// checkRepository refuses a V0 start whose repository the provider does not
// show to the stored token (api-contract.md A.3). It says no only when the
// provider does: without a token the repository may be public, and a provider
// that is away or a secret store that is sealed must not keep conversations
// from starting.
func (s *Server) checkRepository(c *call, v *fsm.View, q *fsm.StartRequest) error {
	repo := deref(q.SelectedRepository)
	if !s.cfg.VerifyGitTokens || !repositoryName.MatchString(repo) {
		return nil
	}
	p := repositoryProvider(v.Providers(c.who.user), q.GitProvider)
	if p == nil || p.Ref.IsZero() {
		return nil
	}
	question, known := repositoryProbe(p, repo, s.cfg.GitSchemes)
	if !known || !slices.Contains(s.cfg.GitSchemes, schemeOf(question.url)) {
		return nil
	}
	token, err := s.readSecret(c.ctx(), p.Ref, "token")
	if err != nil {
		return nil
	}
	var answered providerStatus
	if errors.As(s.providers.ask(c.ctx(), p.Type, token, question), &answered) {
		switch int(answered) {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
			text := "Unable to access repo " + repo
			return &refusal{status: http.StatusUnauthorized, text: text, body: text}
		}
	}
	return nil
}

// repositoryProvider is the connection a repository is asked for through: the
// named one, or the only one.
func repositoryProvider(stored []*fsm.Provider, named *fsm.ProviderType) *fsm.Provider {
	if named == nil {
		if len(stored) == 1 {
			return stored[0]
		}
		return nil
	}
	for _, p := range stored {
		if p.Type == *named {
			return p
		}
	}
	return nil
}

// repositoryProbe is how a provider is asked for a repository; known is false
// for the kinds whose repositories are not named "owner/name".
func repositoryProbe(p *fsm.Provider, repo string, schemes []string) (q probe, known bool) {
	base, err := providerBase(p.Type, deref(p.Host), schemes)
	if err != nil {
		return probe{}, false
	}
	anything := func(map[string]any) bool { return true }
	switch p.Type {
	case fsm.ProviderGitHub:
		return probe{url: base + "/repos/" + repo, knows: anything}, true
	case fsm.ProviderGitLab:
		return probe{url: base + "/api/v4/projects/" + url.PathEscape(repo), knows: anything}, true
	case fsm.ProviderBitbucket:
		return probe{url: base + "/2.0/repositories/" + repo, knows: anything}, true
	case fsm.ProviderForgejo:
		return probe{url: base + "/api/v1/repos/" + repo, knows: anything}, true
	}
	return probe{}, false
}
