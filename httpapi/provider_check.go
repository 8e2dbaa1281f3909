package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// maxProviderAnswer bounds what is read of a provider's answer, in bytes.
const maxProviderAnswer = 256 << 10

// providerChecker asks git providers whether a token works and is of their
// kind. The host may be chosen by a user, so every call keeps to the host policy
// of Config (host_policy.go).
type providerChecker struct {
	client  *http.Client
	schemes []string
}

func newProviderChecker(cfg Config) *providerChecker {
	return &providerChecker{
		schemes: cfg.GitSchemes,
		client: &http.Client{
			Timeout:   cfg.GitTimeout,
			Transport: newPolicyTransport(cfg.AllowedGitHosts, cfg.GitTimeout),
			// A redirect would carry the request past the host that was checked.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// probe is one question to a provider that only a good token gets answered.
type probe struct {
	url   string
	knows func(answer map[string]any) bool
}

// check is nil when the provider at host ("" for its default) takes the token.
func (p *providerChecker) check(ctx context.Context, kind fsm.ProviderType, host, token string) error {
	invalid := &refusal{status: http.StatusUnauthorized,
		text: fmt.Sprintf("Invalid token. Please make sure it is a valid %s token.", kind)}
	q, err := probeFor(kind, host, p.schemes)
	if err != nil {
		invalid.cause = err
		return invalid
	}
	if !slices.Contains(p.schemes, schemeOf(q.url)) {
		return errHostRefused(kind)
	}
	err = p.ask(ctx, kind, token, q)
	switch {
	case errors.Is(err, errHostPolicy):
		return errHostRefused(kind)
	case err != nil:
		invalid.cause = err
		return invalid
	}
	return nil
}

// errHostRefused is a validation error: the host may not be asked at all.
func errHostRefused(kind fsm.ProviderType) error {
	var p problems
	p.value([]string{"body", "provider_tokens", string(kind), "host"}, "this host is not allowed here", masked)
	return &p
}

func schemeOf(u string) string {
	scheme, _, _ := strings.Cut(u, "://")
	return scheme
}

// providerStatus is a provider's answer other than 200.
type providerStatus int

// Error implements error.
func (s providerStatus) Error() string { return fmt.Sprintf("the provider answered %d", int(s)) }

// credential is how a provider takes a token.
func credential(kind fsm.ProviderType, token string) (header, value string) {
	switch kind {
	case fsm.ProviderGitLab:
		return "Private-Token", token
	case fsm.ProviderBitbucket, fsm.ProviderBitbucketDataCenter:
		// "user:password" goes as basic credentials, as upstream does.
		if strings.Contains(token, ":") {
			return "Authorization", basic(token)
		}
	case fsm.ProviderForgejo:
		return "Authorization", "token " + token
	case fsm.ProviderAzureDevOps:
		return "Authorization", basic(":" + token)
	}
	return "Authorization", "Bearer " + token
}

// ask sends a probe. Its errors never hold the token or the provider's words.
func (p *providerChecker) ask(ctx context.Context, kind fsm.ProviderType, token string, q probe) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.url, nil)
	if err != nil {
		return errors.New("the provider's address is no URL")
	}
	req.Header.Set(credential(kind, token))
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "bivouac")
	resp, err := p.client.Do(req)
	if err != nil {
		if errors.Is(err, errHostPolicy) {
			return errHostPolicy
		}
		return errors.New("the provider could not be reached")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return providerStatus(resp.StatusCode)
	}
	var body map[string]any
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxProviderAnswer)).Decode(&body); err != nil {
		return errors.New("the provider did not answer with a JSON object")
	}
	if !q.knows(body) {
		return errors.New("the answer is not one of this kind of provider")
	}
	return nil
}

// probeFor says what to ask which provider.
func probeFor(kind fsm.ProviderType, host string, schemes []string) (probe, error) {
	base, err := providerBase(kind, host, schemes)
	if err != nil {
		return probe{}, err
	}
	switch kind {
	case fsm.ProviderGitHub:
		return probe{url: base + "/user", knows: hasText("login")}, nil
	case fsm.ProviderGitLab:
		return probe{url: base + "/api/v4/user", knows: hasText("username")}, nil
	case fsm.ProviderBitbucket:
		return probe{url: base + "/2.0/user", knows: hasText("account_id", "uuid")}, nil
	case fsm.ProviderBitbucketDataCenter:
		return probe{url: base + "/rest/api/1.0/projects?limit=1", knows: hasMember("values")}, nil
	case fsm.ProviderForgejo:
		return probe{url: base + "/api/v1/user", knows: hasText("login")}, nil
	case fsm.ProviderAzureDevOps:
		if host == "" || base == azureProfile {
			return probe{url: azureProfile, knows: hasText("id")}, nil
		}
		return probe{url: base + "/_apis/connectionData", knows: hasMember("authenticatedUser")}, nil
	}
	return probe{}, fmt.Errorf("there is no way to check a token of %s", kind)
}

// azureProfile knows every good token, whatever its organisation.
const azureProfile = "https://app.vssps.visualstudio.com/_apis/profile/profiles/me?api-version=7.1"

// providerBase is the URL a provider's API begins at.
func providerBase(kind fsm.ProviderType, host string, schemes []string) (string, error) {
	u := &url.URL{Scheme: "https"}
	if host != "" {
		parsed, err := parseGitHost(host)
		if err != nil {
			return "", err
		}
		u = parsed
		if u.Scheme == "" {
			u.Scheme = "https"
			if !slices.Contains(schemes, "https") && len(schemes) > 0 {
				u.Scheme = schemes[0]
			}
		}
	}
	base := strings.TrimRight(u.String(), "/")
	switch kind {
	case fsm.ProviderGitHub:
		return defaultBase(u, base+"/api/v3", "github.com", "https://api.github.com"), nil
	case fsm.ProviderGitLab:
		return defaultBase(u, base, "gitlab.com", "https://gitlab.com"), nil
	case fsm.ProviderBitbucket:
		return defaultBase(u, base, "bitbucket.org", "https://api.bitbucket.org"), nil
	case fsm.ProviderForgejo:
		return defaultBase(u, base, "codeberg.org", "https://codeberg.org"), nil
	case fsm.ProviderAzureDevOps:
		return defaultBase(u, base, "dev.azure.com", azureProfile), nil
	}
	if host == "" {
		return "", fmt.Errorf("%s has no default host", kind)
	}
	return base, nil
}

// defaultBase gives the public service's address when the host is empty or the
// service's own name.
func defaultBase(u *url.URL, own, public, address string) string {
	if u.Host == "" || strings.EqualFold(u.Host, public) && strings.Trim(u.Path, "/") == "" {
		return address
	}
	return own
}

func basic(userAndPassword string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(userAndPassword))
}

// hasText reports whether one of the members is a text that is not empty.
func hasText(names ...string) func(map[string]any) bool {
	return func(m map[string]any) bool {
		return slices.ContainsFunc(names, func(n string) bool { s, _ := m[n].(string); return s != "" })
	}
}

// hasMember reports whether one of the members is there.
func hasMember(names ...string) func(map[string]any) bool {
	return func(m map[string]any) bool {
		return slices.ContainsFunc(names, func(n string) bool { return m[n] != nil })
	}
}
