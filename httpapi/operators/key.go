package operators

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"time"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

func newKeyBody(k *fsm.APIKey) wire.APIKey {
	return wire.APIKey{ID: k.ID, Lookup: k.Lookup, User: k.UserID, Name: k.Name,
		Role: string(k.RoleOf()), Operator: k.IsOperator(), Scope: k.Scope, Disabled: k.Disabled,
		CreatedAt: wire.At(k.CreatedAt), ExpiresAt: wire.TimeOrNull(k.ExpiresAt), LastUsedAt: wire.TimeOrNull(k.LastUsedAt),
		RevokedAt: wire.TimeOrNull(k.RevokedAt), SuspendedAt: wire.TimeOrNull(k.SuspendedAt)}
}

// APIKeyList handles GET /api/v1/operator/keys.
func (s *Server) APIKeyList(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows := v.APIKeys()
	items := make([]wire.APIKey, len(rows))
	for i, row := range rows {
		items[i] = newKeyBody(row)
	}
	return response.OK(wire.NewPage(items, ""))
}

// APIKeyCreate handles POST /api/v1/operator/keys: {"user", "name", "operator", "expires_at"}
// creates a key. Only this response has its value, which is random and kept nowhere: a repeated
// Idempotency-Key is answered with a conflict.
func (s *Server) APIKeyCreate(c *request.Call) (response.Response, error) {
	o := c.Object()
	body := &fsm.APIKeyCreateBody{
		UserID:   o.MustText("user", fsm.MaxName),
		Name:     o.MustText("name", fsm.MaxName),
		Operator: o.BooleanOr("operator", false), ExpiresAt: readExpiry(o, c.Now),
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if body.ExpiresAt != nil {
		if err := s.mustKnowAccess("expires_at"); err != nil {
			return response.Response{}, err
		}
	}
	key, err := apikey.New(rand.Reader)
	if err != nil {
		return response.Response{}, err
	}
	body.Lookup, body.Hash = key.Lookup, key.Hash
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return body, request.SecretWrites{}, nil
	}, func(res fsm.Result) (response.Response, error) {
		if res.APIKey == nil {
			return response.Response{}, request.ErrEmptyResult(fsm.APIKeyCreate)
		}
		if res.APIKey.Lookup != body.Lookup {
			return response.Response{}, errKeyMade(res.APIKey)
		}
		made := wire.CreatedAPIKey{APIKey: newKeyBody(res.APIKey), Key: key.Value}
		return response.Response{Status: http.StatusCreated, Body: made}, nil
	})
}

// errKeyMade answers a repeated creation: nobody has the value of the key that was made.
func errKeyMade(k *fsm.APIKey) error {
	return response.Error(http.StatusConflict, fmt.Sprintf(
		"the key %d was made by the first request with this Idempotency-Key, and its value is shown only once: "+
			"if it is lost, revoke the key and create another with another Idempotency-Key", k.ID))
}

// readExpiry reads the member expires_at, a time after now; nil if absent or null.
func readExpiry(o decode.Object, now time.Time) *time.Time {
	s := o.Text("expires_at", fsm.MaxName)
	if s == nil {
		return nil
	}
	at, err := time.Parse(time.RFC3339, *s)
	switch {
	case err != nil:
		o.Rule("expires_at", `must be a time such as "2026-01-02T15:04:05Z"`)
		return nil
	case !at.After(now):
		o.Rule("expires_at", "must be in the future")
		return nil
	}
	return &at
}

// mustKnowAccess refuses what every node must know, while the cluster is below fsm.VersionAccess.
func (s *Server) mustKnowAccess(what string) error {
	v, err := s.Cluster.View(context.Background(), cluster.Stale)
	if err != nil {
		return fmt.Errorf("reading the protocol version: %w", err)
	}
	if !v.Active(fsm.VersionAccess) {
		return fsm.NeedsVersion(what, fsm.VersionAccess, v.ProtocolVersion())
	}
	return nil
}

// APIKeyRevoke handles DELETE /api/v1/operator/keys/{id}.
func (s *Server) APIKeyRevoke(c *request.Call) (response.Response, error) {
	id, err := c.CountedID("id")
	if err != nil {
		return response.Response{}, err
	}
	if _, err := c.Propose(&fsm.APIKeyRevokeBody{ID: id}); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Not Found")
	}
	return response.OK(wire.Success{Success: true})
}

// APIKeyEnable handles POST /api/v1/operator/keys/{id}/enable. It ends a suspension by a
// restore, and what disable began.
func (s *Server) APIKeyEnable(c *request.Call) (response.Response, error) {
	return s.changeKey(c, func(id int) fsm.Body { return &fsm.APIKeyEnableBody{ID: id} })
}

// APIKeyDisable handles POST /api/v1/operator/keys/{id}/disable.
func (s *Server) APIKeyDisable(c *request.Call) (response.Response, error) {
	return s.changeKey(c, func(id int) fsm.Body { return &fsm.APIKeyDisableBody{ID: id} })
}

// changeKey runs a command on the key of the path and answers with the key.
func (s *Server) changeKey(c *request.Call, body func(id int) fsm.Body) (response.Response, error) {
	id, err := c.CountedID("id")
	if err != nil {
		return response.Response{}, err
	}
	res, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return body(id), request.SecretWrites{}, nil
	}, func(res fsm.Result) (response.Response, error) {
		if res.APIKey == nil {
			return response.Response{}, request.ErrEmptyResult(body(id).CommandType())
		}
		return response.OK(newKeyBody(res.APIKey))
	})
	return res, response.NotFoundAs(err, "Not Found")
}
