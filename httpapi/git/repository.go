package git

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
)

// repositoryName is "owner/name" (with groups on GitLab), without characters that change a URL's
// path.
var repositoryName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$`)

// Repository refuses a V0 start if the provider denies the stored token access to the repository
// (API.md, "Conversations: V0 start"). It refuses nothing else: without a token the repository may
// be public, and a failing provider or secret store must not block starts.
func (v *Verifier) Repository(ctx context.Context, stored []*fsm.Provider, q *fsm.StartRequest) error {
	repo := decode.OrZero(q.SelectedRepository)
	if !v.cfg.VerifyTokens || !repositoryName.MatchString(repo) {
		return nil
	}
	p := repositoryProvider(stored, q.GitProvider)
	if p == nil || p.Ref.IsZero() {
		return nil
	}
	question, known := repositoryProbe(p, repo, v.cfg.Schemes)
	if !known || !slices.Contains(v.cfg.Schemes, schemeOf(question.url)) {
		return nil
	}
	token, err := v.stored(ctx, p.Ref)
	if err != nil {
		return nil
	}
	var status providerStatus
	if errors.As(v.ask(ctx, p.Type, token, question), &status) {
		switch int(status) {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
			text := "Unable to access repo " + repo
			return &response.HTTPError{Status: http.StatusUnauthorized, Text: text, Body: text}
		}
	}
	return nil
}

// repositoryProvider returns the provider of the named type, or the only one the user has.
func repositoryProvider(stored []*fsm.Provider, named *fsm.ProviderType) *fsm.Provider {
	if named == nil {
		if len(stored) == 1 {
			return stored[0]
		}
		return nil
	}
	return find(stored, *named)
}

// repositoryProbe returns the request for a repository. known is false for providers whose
// repositories are not named "owner/name".
func repositoryProbe(p *fsm.Provider, repo string, schemes []string) (q probe, known bool) {
	base, err := providerBase(p.Type, decode.OrZero(p.Host), schemes)
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
