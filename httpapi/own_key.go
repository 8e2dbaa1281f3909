package httpapi

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/proxy"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// keyBody is a key as its user sees it. The members that are always null are upstream's; the last two
// are those of the operators' list.
type keyBody struct {
	ID          int        `json:"id"`
	Name        string     `json:"name"`
	CreatedAt   wire.Time  `json:"created_at"`
	LastUsedAt  *wire.Time `json:"last_used_at"`
	NotBefore   *wire.Time `json:"not_before"`
	ExpiresAt   *wire.Time `json:"expires_at"`
	OrgID       *string    `json:"org_id"`
	Disabled    bool       `json:"disabled"`
	SuspendedAt *wire.Time `json:"suspended_at"`
}

// madeKeyBody is the answer to a creation, the only one with the key itself.
type madeKeyBody struct {
	keyBody
	Key string `json:"key"`
}

// currentKeyBody is the key that a request has come with.
type currentKeyBody struct {
	ID         int     `json:"id"`
	Name       string  `json:"name"`
	OrgID      string  `json:"org_id"`
	BoundOrgID *string `json:"bound_org_id"`
	UserID     string  `json:"user_id"`
	// AuthType is "bearer", also for a key in X-Session-API-Key.
	AuthType string `json:"auth_type"`
}

func newOwnKeyBody(k *fsm.APIKey) keyBody {
	return keyBody{ID: k.ID, Name: k.Name, CreatedAt: wire.At(k.CreatedAt), LastUsedAt: wire.TimeOrNull(k.LastUsedAt),
		ExpiresAt: wire.TimeOrNull(k.ExpiresAt), Disabled: k.Disabled, SuspendedAt: wire.TimeOrNull(k.SuspendedAt)}
}

// handleOwnKeyCurrent handles GET /api/keys/current. A session has come without a key.
func (s *Server) handleOwnKeyCurrent(c *call) (response.Response, error) {
	_, bearer := apikey.Bearer(c.Request)
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	k := v.APIKeyByLookup(c.Caller.Credential.Lookup)
	if k == nil || !bearer && c.Request.Header.Get(proxy.HeaderKey) == "" {
		return response.Response{}, response.Error(http.StatusBadRequest, "The request was not made with an API key")
	}
	return response.OK(currentKeyBody{ID: k.ID, Name: k.Name, OrgID: k.UserID, UserID: k.UserID, AuthType: "bearer"})
}

// handleOwnKeyList handles GET /api/keys: the keys that the user has not revoked.
func (s *Server) handleOwnKeyList(c *call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	items := []keyBody{}
	for _, k := range v.APIKeysOf(c.Caller.User) {
		if k.RevokedAt == nil {
			items = append(items, newOwnKeyBody(k))
		}
	}
	return response.OK(items)
}

// handleOwnKeyCreate handles POST /api/keys: a key that acts for its user and never as an operator. Its
// value is in this answer only.
func (s *Server) handleOwnKeyCreate(c *call) (response.Response, error) {
	o := c.Object()
	body := &fsm.OwnKeyCreateBody{Name: decode.OrZero(o.Text("name", fsm.MaxName)), ExpiresAt: readExpiry(o, c.Now)}
	if o.Value("not_before") != nil {
		o.Rule("not_before", "a key is valid from now on: make it when it is needed")
	}
	if org := o.Text("org_id", fsm.MaxName); org != nil && *org != c.Caller.User {
		o.Rule("org_id", "a key is of its user's own organization: leave it out")
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	key, err := apikey.New(rand.Reader)
	if err != nil {
		return response.Response{}, err
	}
	body.Lookup, body.Hash = key.Lookup, key.Hash
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return body, request.SecretWrites{}, nil
	}, func(res fsm.Result) (response.Response, error) {
		switch made := res.APIKey; {
		case made == nil:
			return response.Response{}, request.ErrEmptyResult(fsm.OwnKeyCreate)
		case made.Lookup != body.Lookup:
			return response.Response{}, response.Error(http.StatusConflict, fmt.Sprintf("the key %d was made by the first "+
				"request with this Idempotency-Key, and its value is shown only once: delete it and make another", made.ID))
		default:
			return response.OK(madeKeyBody{newOwnKeyBody(made), key.Value})
		}
	})
}

// handleOwnKeyDelete handles DELETE /api/keys/{key_id}.
func (s *Server) handleOwnKeyDelete(c *call) (response.Response, error) {
	id, err := c.CountedID("key_id")
	if err != nil {
		return response.Response{}, err
	}
	if _, err := c.Propose(&fsm.OwnKeyRevokeBody{ID: id}); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Not Found")
	}
	return response.OK(messageBody{Message: "API key deleted successfully"})
}

// messageBody is an answer in words.
type messageBody struct {
	Message string `json:"message"`
}

// readExpiry reads the member expires_at, a time after now; nil if absent or null.
func readExpiry(o decode.Object, now time.Time) *time.Time {
	text := o.Text("expires_at", fsm.MaxName)
	if text == nil {
		return nil
	}
	at, fault := decode.ToTime(*text)
	switch {
	case fault != nil:
		o.Fail("expires_at", *text, fault)
		return nil
	case !at.After(now):
		o.Rule("expires_at", "expires_at must be in the future")
		return nil
	}
	return &at
}
