package git

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/response"
)

// Verifier checks tokens and repositories with git providers. A user may choose the host, so every
// request follows the host policy (host_policy.go).
type Verifier struct {
	cfg    Config
	client *http.Client
	// stored reads a stored token.
	stored func(context.Context, fsm.SecretRef) (string, error)
}

// NewVerifier returns a Verifier. stored reads a stored token.
func NewVerifier(cfg Config, stored func(context.Context, fsm.SecretRef) (string, error)) *Verifier {
	return &Verifier{
		cfg: cfg, stored: stored,
		client: &http.Client{
			Timeout:   cfg.Timeout,
			Transport: newPolicyTransport(cfg.AllowedHosts, cfg.Timeout),
			// A redirect would lead past the checked host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Tokens checks tokens with their providers: every token that was sent, and every stored one whose
// host changes. One bad token fails the request.
func (v *Verifier) Tokens(ctx context.Context, stored []*fsm.Provider, sent []Token) error {
	if !v.cfg.VerifyTokens {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, t := range sent {
		group.Go(func() error { return v.token(ctx, find(stored, t.Provider), t) })
	}
	return group.Wait()
}

func (v *Verifier) token(ctx context.Context, stored *fsm.Provider, sent Token) error {
	value := sent.Value
	if value == "" {
		if stored == nil || stored.Ref.IsZero() || decode.OrZero(stored.Host) == decode.OrZero(sent.Host) {
			return nil
		}
		kept, err := v.stored(ctx, stored.Ref)
		if err != nil {
			return err
		}
		value = kept
	}
	return v.check(ctx, sent.Provider, decode.OrZero(sent.Host), value)
}

// check returns nil if the provider at host ("" for its default) accepts the token.
func (v *Verifier) check(ctx context.Context, provider fsm.ProviderType, host, token string) error {
	invalid := &response.HTTPError{Status: http.StatusUnauthorized,
		Text: fmt.Sprintf("Invalid token. Please make sure it is a valid %s token.", provider)}
	q, err := probeFor(provider, host, v.cfg.Schemes)
	if err != nil {
		invalid.Cause = err
		return invalid
	}
	if !slices.Contains(v.cfg.Schemes, schemeOf(q.url)) {
		return errHostRefused(provider)
	}
	err = v.ask(ctx, provider, token, q)
	switch {
	case errors.Is(err, errHostPolicy):
		return errHostRefused(provider)
	case err != nil:
		invalid.Cause = err
		return invalid
	}
	return nil
}

// errHostRefused is the validation error for a forbidden host.
func errHostRefused(provider fsm.ProviderType) error {
	var p decode.Problems
	p.Value([]string{"body", "provider_tokens", string(provider), "host"}, "this host is not allowed here", decode.Masked)
	return &p
}

func schemeOf(u string) string {
	scheme, _, _ := strings.Cut(u, "://")
	return scheme
}
