package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
)

// sandboxSecretsBody is the answer of GET
// /api/v1/sandboxes/{sandbox_id}/settings/secrets (api-contract.md B.1).
type sandboxSecretsBody struct {
	Secrets []secretName `json:"secrets"`
}

// secretName is a secret without its value.
type secretName struct {
	Name        string  `json:"name"`
	Description *string `json:"description"`
}

// ownSecret is a secret that a sandbox may read.
type ownSecret struct {
	secretName
	ref    fsm.SecretRef
	member string
}

// handleSandboxSecrets handles GET
// /api/v1/sandboxes/{sandbox_id}/settings/secrets, with the sandbox's own key.
func (s *Server) handleSandboxSecrets(c *call) (answer, error) {
	list, err := c.ownSecrets()
	if err != nil {
		return answer{}, err
	}
	b := sandboxSecretsBody{Secrets: make([]secretName, len(list))}
	for i, one := range list {
		b.Secrets[i] = one.secretName
	}
	return ok(b)
}

// handleSandboxSecret handles GET
// /api/v1/sandboxes/{sandbox_id}/settings/secrets/{secret_name}: the value, as
// it is now.
func (s *Server) handleSandboxSecret(c *call) (answer, error) {
	list, err := c.ownSecrets()
	if err != nil {
		return answer{}, err
	}
	name := strings.TrimPrefix(c.params.ByName("secret_name"), "/")
	i := slices.IndexFunc(list, func(one ownSecret) bool { return one.Name == name })
	if i < 0 {
		return answer{}, refuse(http.StatusNotFound, "Secret not found")
	}
	value := ""
	if ref := list[i].ref; !ref.IsZero() {
		if value, err = s.readSecret(c.ctx(), ref, list[i].member); err != nil {
			return answer{}, err
		}
	}
	if value == "" {
		return answer{}, refuse(http.StatusNotFound, "Secret has no value")
	}
	return ok(plainText(value))
}

// ownSecrets lets the sandbox of the path in and gives the secrets of its owner,
// by name: the custom ones, and the git tokens under the names they have in an
// environment. A custom one hides a git token of the same name.
func (c *call) ownSecrets() ([]ownSecret, error) {
	key := c.r.Header.Get(headerSessionKey)
	if _, err := c.ownSandbox(key); err != nil {
		return nil, err
	}
	v, err := c.viewWith(cluster.Linearizable)
	if err != nil {
		return nil, err
	}
	// This node may have been behind when it let the sandbox in.
	row, err := c.letIn(v.SandboxByKeyHash(hashKey(key)), key)
	if err != nil {
		return nil, err
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
		byName[s.Name] = ownSecret{secretName{s.Name, orNull(s.Description)}, s.Ref, "value"}
	}
	list := make([]ownSecret, 0, len(byName))
	for _, name := range sortedKeys(byName) {
		list = append(list, byName[name])
	}
	return list, nil
}

// ownSandbox authenticates a request by the key of the sandbox in its path.
func (c *call) ownSandbox(key string) (*fsm.Sandbox, error) {
	if key == "" {
		return nil, refuse(http.StatusUnauthorized, "X-Session-API-Key header is required")
	}
	row, err := c.server.sandboxOfKey(c, key)
	if err != nil {
		return nil, err
	}
	return c.letIn(row, key)
}

// letIn judges the sandbox that was found by a key.
func (c *call) letIn(row *fsm.Sandbox, key string) (*fsm.Sandbox, error) {
	// The index told which it may be; whether it is, and is anybody's, this says.
	if !opens(row, key) || !isOwned(row) {
		return nil, refuse(http.StatusUnauthorized, "Invalid session API key")
	}
	c.who.user = row.UserID
	exchangeOf(c.r.Context()).sandbox = row.ID
	switch {
	case row.ID != c.params.ByName("sandbox_id"):
		return nil, refuse(http.StatusForbidden, "Session API key does not match sandbox")
	case row.Desired != fsm.DesiredRunning || row.State() != fsm.SandboxRunning:
		return nil, refuse(http.StatusUnauthorized, "Sandbox is not running")
	}
	return row, nil
}

// sandboxOfKey finds the sandbox a key belongs to, nil when there is none. It
// goes by this node's own store unless the key is unknown there, since another
// node may have made it a moment ago.
func (s *Server) sandboxOfKey(c *call, key string) (*fsm.Sandbox, error) {
	v, err := s.door.view(c.ctx())
	if err != nil {
		return nil, err
	}
	hash := hashKey(key)
	row := v.SandboxByKeyHash(hash)
	if row == nil {
		if !s.keys.unknown.Allow() {
			return nil, errTooManyRequests()
		}
		if v, err = c.viewWith(cluster.Linearizable); err != nil {
			return nil, err
		}
		row = v.SandboxByKeyHash(hash)
	}
	return row, nil
}
