package httpapi

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// providerNames are the provider types of the wire, in the contract's order.
func providerNames() []string {
	return []string{
		string(fsm.ProviderGitHub), string(fsm.ProviderGitLab), string(fsm.ProviderBitbucket),
		string(fsm.ProviderBitbucketDataCenter), string(fsm.ProviderForgejo), string(fsm.ProviderAzureDevOps),
		string(fsm.ProviderEnterpriseSSO),
	}
}

// providerInput is one entry of a provider_tokens map.
type providerInput struct {
	kind fsm.ProviderType
	// token is "" for a blank, null or absent one.
	token  string
	userID *string
	host   *string
}

// readProviders reads the member provider_tokens, in the order of its names.
func readProviders(o object) []providerInput {
	if !o.notNull("provider_tokens", kindDict) {
		return nil
	}
	dict, ok := o.masked().dict("provider_tokens")
	if !ok {
		return nil
	}
	var out []providerInput
	for _, name := range sortedKeys(dict.m) {
		if !slices.Contains(providerNames(), name) {
			f := enumFault(providerNames())
			// A token sent in the place of the name is not to be shown again.
			o.errs.add(f.typ, at(dict.loc, plainOr(name), "[key]"), f.msg, plainOr(name), f.ctx)
			continue
		}
		if !dict.notNull(name, kindObject) {
			continue
		}
		if one, ok := dict.object(name); ok {
			out = append(out, readProvider(fsm.ProviderType(name), one))
		}
	}
	return out
}

func readProvider(kind fsm.ProviderType, o object) providerInput {
	in := providerInput{
		kind:   kind,
		token:  strings.TrimSpace(deref(o.text("token", maxText))),
		userID: o.text("user_id", maxNameText),
		host:   o.text("host", maxNameText),
	}
	if in.host != nil {
		host := strings.TrimSpace(*in.host)
		if in.host = &host; host == "" {
			in.host = nil
		} else if _, err := parseGitHost(host); err != nil {
			o.rule("host", err.Error())
		}
	}
	return in
}

// plainOr gives a name that may be shown.
func plainOr(name string) string {
	if isPlainName(name) {
		return name
	}
	return masked
}

// provider is the row without the token's ref.
func (in providerInput) provider(user string) fsm.Provider {
	return fsm.Provider{UserID: user, Type: in.kind, Host: in.host, ExternalUserID: in.userID}
}

// stage notes the token to write, if there is one.
func (in providerInput) stage(w *secretWrites, user string, p *fsm.Provider) {
	if in.token != "" {
		w.add(providerPath(user, in.kind), "token", in.token, &p.Ref)
	}
}

// handleProvidersReplace handles POST /api/add-git-providers.
func (s *Server) handleProvidersReplace(c *call) (answer, error) {
	o := c.object()
	readMCPConfig(o) // checked, otherwise unused
	providers := readProviders(o)
	if err := c.check(); err != nil {
		return answer{}, err
	}
	return c.once(func() (fsm.Body, secretWrites, error) {
		v, err := c.viewWith(cluster.Linearizable)
		if err != nil {
			return nil, secretWrites{}, err
		}
		if err := s.verifyProviders(c, v, providers); err != nil {
			return nil, secretWrites{}, err
		}
		var writes secretWrites
		body := &fsm.ProvidersReplaceBody{Providers: make([]fsm.Provider, len(providers))}
		for i, p := range providers {
			body.Providers[i] = p.provider(c.who.user)
			p.stage(&writes, c.who.user, &body.Providers[i])
		}
		return body, writes, nil
	}, func(fsm.Result) (answer, error) {
		return ok(message{Message: "Git providers stored"})
	})
}

// verifyProviders asks the providers whether the tokens are theirs and good:
// every token that was sent, and every stored one whose host changes. One bad
// token refuses the request.
func (s *Server) verifyProviders(c *call, v *fsm.View, providers []providerInput) error {
	if !s.cfg.VerifyGitTokens || len(providers) == 0 {
		return nil
	}
	stored := map[fsm.ProviderType]*fsm.Provider{}
	for _, p := range v.Providers(c.who.user) {
		stored[p.Type] = p
	}
	group, ctx := errgroup.WithContext(c.ctx())
	for _, in := range providers {
		group.Go(func() error { return s.verifyProvider(ctx, in, stored[in.kind]) })
	}
	return group.Wait()
}

func (s *Server) verifyProvider(ctx context.Context, in providerInput, stored *fsm.Provider) error {
	token := in.token
	if token == "" {
		if stored == nil || stored.Ref.IsZero() || deref(stored.Host) == deref(in.host) {
			return nil
		}
		kept, err := s.readSecret(ctx, stored.Ref, "token")
		if err != nil {
			return err
		}
		token = kept
	}
	return s.providers.check(ctx, in.kind, deref(in.host), token)
}
