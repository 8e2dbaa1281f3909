package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/limits"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// sandboxSecretsBody is the response of GET /api/v1/sandboxes/{sandbox_id}/settings/secrets
// (API.md, "Sandbox secrets").
type sandboxSecretsBody struct {
	Secrets []secretName `json:"secrets"`
}

// secretName is a secret without its value.
type secretName struct {
	Name        string  `json:"name"`
	Description *string `json:"description"`
}

// ownSecret is a secret that the sandbox may read.
type ownSecret struct {
	secretName
	ref    fsm.SecretRef
	member string
}

// handleSandboxSecrets handles GET /api/v1/sandboxes/{sandbox_id}/settings/secrets, authenticated
// by the sandbox's own key.
func (s *Server) handleSandboxSecrets(c *call) (response.Response, error) {
	list, err := c.ownSecrets()
	if err != nil {
		return response.Response{}, err
	}
	b := sandboxSecretsBody{Secrets: make([]secretName, len(list))}
	for i, one := range list {
		b.Secrets[i] = one.secretName
	}
	return response.OK(b)
}

// handleSandboxSecret handles GET /api/v1/sandboxes/{sandbox_id}/settings/secrets/{secret_name}:
// the secret's present value.
func (s *Server) handleSandboxSecret(c *call) (response.Response, error) {
	list, err := c.ownSecrets()
	if err != nil {
		return response.Response{}, err
	}
	name := strings.TrimPrefix(c.Params.ByName("secret_name"), "/")
	i := slices.IndexFunc(list, func(one ownSecret) bool { return one.Name == name })
	if i < 0 {
		return response.Response{}, response.Error(http.StatusNotFound, "Secret not found")
	}
	value := ""
	if ref := list[i].ref; !ref.IsZero() {
		if value, err = s.calls.ReadSecret(c.Ctx(), ref, list[i].member); err != nil {
			return response.Response{}, err
		}
	}
	if value == "" {
		return response.Response{}, response.Error(http.StatusNotFound, "Secret has no value")
	}
	return response.OK(response.PlainText(value))
}

// ownSecrets authenticates the sandbox in the path and returns its owner's secrets, sorted by name:
// the custom ones, and the git tokens under their environment names. A custom secret replaces a git
// token of the same name.
func (c *call) ownSecrets() ([]ownSecret, error) {
	key := c.Request.Header.Get(proxy.HeaderKey)
	if _, err := c.ownSandbox(key); err != nil {
		return nil, err
	}
	v, err := c.ViewWith(cluster.Linearizable)
	if err != nil {
		return nil, err
	}
	// This node may have been behind when it authenticated the sandbox.
	row, err := c.letIn(v.SandboxByKeyHash(apikey.Hash(key)), key)
	if err != nil {
		return nil, err
	}
	if v.LockedOut(row.UserID, time.Now()) {
		return nil, response.Error(http.StatusUnauthorized, "Invalid session API key")
	}
	byName := map[string]ownSecret{}
	for _, p := range v.Providers(row.UserID) {
		if p.Ref.IsZero() {
			continue
		}
		name := strings.ToUpper(string(p.Type)) + "_TOKEN"
		byName[name] = ownSecret{secretName{name, new(string(p.Type) + " authentication token")}, p.Ref, "token"}
	}
	for _, s := range v.CustomSecrets(row.UserID) {
		byName[s.Name] = ownSecret{secretName{s.Name, wire.OrNull(s.Description)}, s.Ref, "value"}
	}
	list := make([]ownSecret, 0, len(byName))
	for _, name := range decode.SortedKeys(byName) {
		list = append(list, byName[name])
	}
	return list, nil
}

// ownSandbox authenticates a request by the key of the sandbox in its path.
func (c *call) ownSandbox(key string) (*fsm.Sandbox, error) {
	if key == "" {
		return nil, response.Error(http.StatusUnauthorized, "X-Session-API-Key header is required")
	}
	row, err := c.server.sandboxOfKey(c, key)
	if err != nil {
		return nil, err
	}
	return c.letIn(row, key)
}

// letIn checks a key against the sandbox that it was found by.
func (c *call) letIn(row *fsm.Sandbox, key string) (*fsm.Sandbox, error) {
	// The lookup by hash only finds a candidate; this compares the key and checks that the sandbox
	// has an owner.
	if !proxy.Opens(row, key) || !proxy.IsOwned(row) {
		request.InfoOf(c.Request.Context()).Refused = refusedUnknown
		return nil, response.Error(http.StatusUnauthorized, "Invalid session API key")
	}
	c.Caller.User = row.UserID
	request.InfoOf(c.Request.Context()).Sandbox = row.ID
	switch {
	case row.ID != c.Params.ByName("sandbox_id"):
		return nil, response.Error(http.StatusForbidden, "Session API key does not match sandbox")
	case row.Desired != fsm.DesiredRunning || row.State() != fsm.SandboxRunning:
		return nil, response.Error(http.StatusUnauthorized, "Sandbox is not running")
	}
	return row, c.server.admit(c.Request.Context(), limits.Client{Sandbox: row.ID})
}

// sandboxOfKey returns the sandbox that a key belongs to, nil if there is none. It reads this
// node's store first and the cluster only for an unknown key, which another node may have created a
// moment ago.
func (s *Server) sandboxOfKey(c *call, key string) (*fsm.Sandbox, error) {
	v, err := s.proxy.View(c.Ctx())
	if err != nil {
		return nil, err
	}
	hash := apikey.Hash(key)
	row := v.SandboxByKeyHash(hash)
	if row == nil {
		if !s.keys.mayAsk(c.Ctx()) {
			return nil, response.TooManyRequests()
		}
		if v, err = c.ViewWith(cluster.Linearizable); err != nil {
			return nil, err
		}
		row = v.SandboxByKeyHash(hash)
	}
	return row, nil
}

// sandboxEntry returns the entry of a sandbox's key. When another key, or a deletion, took the entry
// away after the row was read, the row of now decides.
func (s *Server) sandboxEntry(ctx context.Context, row *fsm.Sandbox) (map[string]string, error) {
	for {
		data, err := s.secrets.Read(ctx, row.KeyRef)
		if fsm.CodeOf(err) != fsm.CodeNotFound {
			if err != nil {
				return nil, request.SecretFailure(err)
			}
			return data, nil
		}
		v, viewErr := s.cluster.View(ctx, cluster.Linearizable)
		if viewErr != nil {
			return nil, viewErr
		}
		now := v.SandboxAny(row.ID)
		switch {
		case now == nil || now.Desired == fsm.DesiredDeleted:
			return nil, response.NotFound()
		case now.KeyRef == row.KeyRef:
			return nil, request.ErrSecretGone(row.KeyRef, err)
		}
		row = now
	}
}
