package httpapi

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"net/http"
	"strconv"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/apikey"
	"bivouac.dev/bivouac/httpapi/response"
)

// keyBody is an API key in the operator API, without its value.
type keyBody struct {
	ID          int       `json:"id"`
	Lookup      string    `json:"lookup"`
	User        string    `json:"user"`
	Name        string    `json:"name"`
	Operator    bool      `json:"operator"`
	CreatedAt   wireTime  `json:"created_at"`
	RevokedAt   *wireTime `json:"revoked_at"`
	SuspendedAt *wireTime `json:"suspended_at"`
}

// createdKeyBody is keyBody with the value, which only the creation returns.
type createdKeyBody struct {
	keyBody
	Key string `json:"key"`
}

func newKeyBody(k *fsm.APIKey) keyBody {
	return keyBody{ID: k.ID, Lookup: k.Lookup, User: k.UserID, Name: k.Name, Operator: k.Operator,
		CreatedAt: wireTime(k.CreatedAt), RevokedAt: wireTimeOrNull(k.RevokedAt), SuspendedAt: wireTimeOrNull(k.SuspendedAt)}
}

// handleAPIKeyList handles GET /api/v1/operator/keys.
func (s *Server) handleAPIKeyList(c *call) (answer, error) {
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	rows := v.APIKeys()
	items := make([]keyBody, len(rows))
	for i, row := range rows {
		items[i] = newKeyBody(row)
	}
	return ok(newPage(items, ""))
}

// handleAPIKeyCreate handles POST /api/v1/operator/keys: {"user", "name", "operator"} creates a
// key. Only this response has its value.
func (s *Server) handleAPIKeyCreate(c *call) (answer, error) {
	o := c.object()
	body := &fsm.APIKeyCreateBody{
		UserID:   o.MustText("user", fsm.MaxName),
		Name:     o.MustText("name", fsm.MaxName),
		Operator: o.BooleanOr("operator", false),
	}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	key, err := apikey.New(c.keySource())
	if err != nil {
		return answer{}, err
	}
	body.Lookup, body.Hash = key.Lookup, key.Hash
	return c.once(func() (fsm.Body, secretWrites, error) {
		return body, secretWrites{}, nil
	}, func(res fsm.Result) (answer, error) {
		if res.APIKey == nil {
			return answer{}, errEmptyResult(fsm.APIKeyCreate)
		}
		if subtle.ConstantTimeCompare([]byte(res.APIKey.Hash), []byte(body.Hash)) != 1 {
			return answer{}, response.Error(http.StatusConflict, "this key was made with another operator key and is not shown again")
		}
		return answer{status: http.StatusCreated, body: createdKeyBody{keyBody: newKeyBody(res.APIKey), Key: key.Value}}, nil
	})
}

// keySource is the source of a new key's randomness. With an Idempotency-Key it derives from the
// caller's own key, so that a repeated request returns the same key although its value is stored
// nowhere.
func (c *call) keySource() io.Reader {
	if c.key == "" {
		return rand.Reader
	}
	return &derived{secret: c.who.key, info: "bivouac api key\n" + c.commandID() + "\n" + c.fingerprint()}
}

// derived is a reader of HKDF-SHA256 output, in blocks.
type derived struct {
	secret, info string
	block        int
	rest         []byte
}

// Read implements io.Reader.
func (d *derived) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		out, err := hkdf.Key(sha256.New, []byte(d.secret), nil, d.info+"\n"+strconv.Itoa(d.block), 256)
		if err != nil {
			return 0, err
		}
		d.rest = out
		d.block++
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// handleAPIKeyRevoke handles DELETE /api/v1/operator/keys/{id}.
func (s *Server) handleAPIKeyRevoke(c *call) (answer, error) {
	id, err := strconv.Atoi(c.params.ByName("id"))
	if err != nil || id < 1 {
		return answer{}, response.NotFound()
	}
	if _, err := c.propose(&fsm.APIKeyRevokeBody{ID: id}); err != nil {
		return answer{}, response.NotFoundAs(err, "Not Found")
	}
	return ok(success{Success: true})
}

// handleAPIKeyEnable handles POST /api/v1/operator/keys/{id}/enable. It ends a suspension by a
// restore.
func (s *Server) handleAPIKeyEnable(c *call) (answer, error) {
	id, err := strconv.Atoi(c.params.ByName("id"))
	if err != nil || id < 1 {
		return answer{}, response.NotFound()
	}
	res, err := c.once(func() (fsm.Body, secretWrites, error) {
		return &fsm.APIKeyEnableBody{ID: id}, secretWrites{}, nil
	}, func(res fsm.Result) (answer, error) {
		if res.APIKey == nil {
			return answer{}, errEmptyResult(fsm.APIKeyEnable)
		}
		return ok(newKeyBody(res.APIKey))
	})
	return res, response.NotFoundAs(err, "Not Found")
}
