package git

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

// maxResponse limits how much of a provider's response is read, in bytes.
const maxResponse = 256 << 10

// probe is a request that a provider accepts only with a good token.
type probe struct {
	url   string
	knows func(body map[string]any) bool
}

// providerStatus is a provider's status other than 200.
type providerStatus int

// Error implements error.
func (s providerStatus) Error() string {
	return fmt.Sprintf("the provider responded with status %d", int(s))
}

// credential returns the header that carries a provider's token.
func credential(kind fsm.ProviderType, token string) (header, value string) {
	switch kind {
	case fsm.ProviderGitLab:
		return "Private-Token", token
	case fsm.ProviderBitbucket, fsm.ProviderBitbucketDataCenter:
		// As upstream, "user:password" becomes basic authentication.
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

// ask sends a probe. Its errors hold neither the token nor the provider's text.
func (v *Verifier) ask(ctx context.Context, kind fsm.ProviderType, token string, q probe) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.url, nil)
	if err != nil {
		return errors.New("the provider's address is no URL")
	}
	req.Header.Set(credential(kind, token))
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "bivouac")
	resp, err := v.client.Do(req)
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
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&body); err != nil {
		return errors.New("the provider's response is no JSON object")
	}
	if !q.knows(body) {
		return errors.New("the response is not one of this kind of provider")
	}
	return nil
}

// probeFor returns the probe for a kind of provider.
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

// azureProfile accepts good tokens of every organisation.
const azureProfile = "https://app.vssps.visualstudio.com/_apis/profile/profiles/me?api-version=7.1"

// providerBase is the base URL of a provider's API.
func providerBase(kind fsm.ProviderType, host string, schemes []string) (string, error) {
	u := &url.URL{Scheme: "https"}
	if host != "" {
		parsed, err := parseHost(host)
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

// defaultBase returns the public service's address if the host is empty or the service's own.
func defaultBase(u *url.URL, own, public, address string) string {
	if u.Host == "" || strings.EqualFold(u.Host, public) && strings.Trim(u.Path, "/") == "" {
		return address
	}
	return own
}

func basic(userAndPassword string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(userAndPassword))
}

// hasText reports whether one of the members is a non-empty string.
func hasText(names ...string) func(map[string]any) bool {
	return func(m map[string]any) bool {
		return slices.ContainsFunc(names, func(n string) bool { s, _ := m[n].(string); return s != "" })
	}
}

// hasMember reports whether one of the members is present and not null.
func hasMember(names ...string) func(map[string]any) bool {
	return func(m map[string]any) bool {
		return slices.ContainsFunc(names, func(n string) bool { return m[n] != nil })
	}
}
