package httpapi

import (
	"net/http"
	"strings"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// secretRoutes are a user's routes to custom secrets, one at a time.
func secretRoutes() []route {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	return []route{
		{name: "secret.search", method: get, path: pathSecrets + "/search", access: user,
			handle: (*Server).handleSecretSearch},
		{name: "secret.create", method: post, path: pathSecrets, access: user, handle: (*Server).handleSecretCreate},
		{name: "secret.update", method: put, path: pathSecrets + "/*secret_id", access: user,
			handle: (*Server).handleSecretUpdate},
		{name: "secret.delete", method: del, path: pathSecrets + "/*secret_id", access: user,
			handle: (*Server).handleSecretDelete},
	}
}

// handleSecretSearch handles GET /api/v1/secrets/search: names, never values.
func (s *Server) handleSecretSearch(c *call) (response.Response, error) {
	part := strings.ToLower(decode.OrZero(c.Query.Text("name__contains", fsm.MaxName)))
	limit, token := request.LimitOf(c.Query), request.PageIDOf(c.Query)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	var all []secretName
	for _, one := range v.CustomSecrets(c.Caller.User) {
		if strings.Contains(strings.ToLower(one.Name), part) {
			all = append(all, secretName{one.Name, wire.OrNull(one.Description)})
		}
	}
	page, next := request.PageAfter(all, func(s secretName) string { return s.Name }, token, limit)
	return response.OK(wire.NewPage(page, next))
}

// secretNameOf reads the name of a custom secret.
func secretNameOf(o decode.Object) string {
	name := o.MustText("name", fsm.MaxName)
	if o.Has("name") && o.Value("name") == "" {
		o.Rule("name", "a secret needs a name")
	}
	return name
}

// handleSecretCreate handles POST /api/v1/secrets. A secret of the same name is replaced.
func (s *Server) handleSecretCreate(c *call) (response.Response, error) {
	o := c.Object().Masked()
	one := customSecretInput{
		name: secretNameOf(o), secret: o.MustText("value", fsm.MaxParagraph),
		description: decode.OrZero(o.Text("description", fsm.MaxLine)),
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		var writes request.SecretWrites
		if _, err := c.current("a single secret"); err != nil {
			return nil, writes, err
		}
		body := &fsm.CustomSecretPutBody{Secret: fsm.CustomSecret{Name: one.name, Description: one.description}}
		writes.Add(fsm.CustomSecretPath(c.Caller.User, one.name), "value", one.secret, &body.Secret.Ref)
		return body, writes, nil
	}, func(fsm.Result) (response.Response, error) {
		return response.Response{Status: http.StatusCreated, Body: wire.Message{Message: "Secret created successfully"}}, nil
	})
}

// secretID is the name in the path, which may have slashes.
func (c *call) secretID() string { return strings.TrimPrefix(c.Params.ByName("secret_id"), "/") }

// handleSecretUpdate handles PUT /api/v1/secrets/{secret_id}: the value stays.
func (s *Server) handleSecretUpdate(c *call) (response.Response, error) {
	o := c.Object().Masked()
	body := &fsm.CustomSecretUpdateBody{
		Name: c.secretID(), NewName: secretNameOf(o), Description: decode.OrZero(o.Text("description", fsm.MaxLine)),
	}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	_, err := c.Propose(body)
	switch {
	case fsm.CodeOf(err) == fsm.CodeConflict:
		return response.Response{}, response.Error(http.StatusBadRequest, "Secret "+body.NewName+" already exists")
	case err != nil:
		return response.Response{}, response.NotFoundAs(err, "Secret not found")
	}
	return response.OK(wire.Message{Message: "Secret updated successfully"})
}

// handleSecretDelete handles DELETE /api/v1/secrets/{secret_id}.
func (s *Server) handleSecretDelete(c *call) (response.Response, error) {
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if _, err := c.Propose(&fsm.CustomSecretDeleteBody{Name: c.secretID()}); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Secret not found")
	}
	return response.OK(wire.Message{Message: "Secret deleted successfully"})
}
