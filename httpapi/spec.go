package httpapi

import (
	"fmt"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// specBody is the API's SandboxSpecInfo (API.md, "Sandbox specs").
type specBody struct {
	ID         string            `json:"id"`
	Command    []string          `json:"command"`
	CreatedAt  wire.Time         `json:"created_at"`
	InitialEnv map[string]string `json:"initial_env"`
	WorkingDir string            `json:"working_dir"`
}

func newSpecBody(s *fsm.Spec) specBody {
	b := specBody{
		ID: s.ID, CreatedAt: wire.At(s.CreatedAt),
		InitialEnv: wire.OrEmptyMap(s.Template.Env), WorkingDir: s.Template.WorkingDir,
	}
	if s.Template.Command != "" {
		b.Command = append(b.Command, s.Template.Command)
	}
	b.Command = append(b.Command, s.Template.Args...)
	return b
}

// handleSpecSearch handles GET /api/v1/sandbox-specs/search.
func (s *Server) handleSpecSearch(c *call) (response.Response, error) {
	token, limit := request.PageIDOf(c.Query), request.LimitOf(c.Query)
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	rows, next := request.PageAfter(v.Specs(), specKey, token, limit)
	items := make([]specBody, len(rows))
	for i, row := range rows {
		items[i] = newSpecBody(row)
	}
	return response.OK(wire.NewPage(items, next))
}

// specKey sorts specs in the order of the list.
func specKey(s *fsm.Spec) string { return fmt.Sprintf("%010d %s", s.Position, s.ID) }

// handleSpecGet handles GET /api/v1/sandbox-specs: the specs with the given ids.
func (s *Server) handleSpecGet(c *call) (response.Response, error) {
	ids := c.Query.Required("id")
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	if len(ids) > request.MaxBatch {
		return response.Response{}, request.ErrBatch("sandbox specs", len(ids))
	}
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	items := make([]*specBody, len(ids))
	for i, id := range ids {
		if row := v.Spec(id); row != nil {
			b := newSpecBody(row)
			items[i] = &b
		}
	}
	return response.OK(items)
}
