package operators

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// SpecList handles GET /api/v1/operator/specs.
func (s *Server) SpecList(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	b := wire.Specs{Items: []wire.Spec{}}
	for _, spec := range v.Specs() {
		row := wire.Spec{Spec: spec, Members: wire.Pool{All: len(v.PoolMembers(spec.ID))}}
		v.ClaimableMember(spec.ID, "", func(string) bool {
			row.Members.Ready++
			return true
		})
		b.Items = append(b.Items, row)
	}
	return response.OK(b)
}

// SpecPool handles POST /api/v1/operator/specs/{id}/pool: {"size": 3} sets the size of the
// spec's warm pool. Ids may contain slashes.
func (s *Server) SpecPool(c *request.Call) (response.Response, error) {
	id, named := strings.CutSuffix(strings.TrimPrefix(c.Params.ByName("id"), "/"), "/pool")
	if !named {
		return response.Response{}, response.NotFound()
	}
	size := c.Object().MustInteger("size")
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	out, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return &fsm.SpecPoolBody{ID: id, Size: int(size)}, request.SecretWrites{}, nil
	}, func(fsm.Result) (response.Response, error) {
		return response.OK(wire.Success{Success: true})
	})
	return out, response.NotFoundAs(err, "Sandbox Spec not found")
}

// SpecApply handles POST /api/v1/operator/specs: {"specs": [fsm.Spec, …], "replace": bool}.
// The cluster sets position and creation time.
func (s *Server) SpecApply(c *request.Call) (response.Response, error) {
	o := c.Object()
	body := &fsm.SpecApplyBody{Specs: ReadSpecs(o), Replace: o.BooleanOr("replace", false)}
	if err := c.Check(); err != nil {
		return response.Response{}, err
	}
	return c.Once(func() (fsm.Body, request.SecretWrites, error) {
		return body, request.SecretWrites{}, s.mayHaveAgents(c, body.Specs)
	}, func(fsm.Result) (response.Response, error) {
		return response.OK(wire.Success{Success: true})
	})
}

// mayHaveAgents refuses agents of specs below fsm.VersionAgents, where Apply does not keep them.
func (s *Server) mayHaveAgents(c *request.Call, specs []fsm.Spec) error {
	if !slices.ContainsFunc(specs, func(s fsm.Spec) bool { return len(s.Agents) > 0 || s.AllowAgentCommand }) {
		return nil
	}
	v, err := c.ViewWith(cluster.Stale)
	if err != nil {
		return err
	}
	if !v.Active(fsm.VersionAgents) {
		return fsm.NeedsVersion("agents of a spec", fsm.VersionAgents, v.ProtocolVersion())
	}
	return nil
}

// ReadSpecs decodes specs with fsm's own JSON. fsm's Validate checks them, and only operators send
// them.
func ReadSpecs(o decode.Object) []fsm.Spec {
	if !o.Require("specs") || !o.NotNull("specs", decode.KindList) {
		return nil
	}
	items, ok := o.List("specs")
	if !ok {
		return nil
	}
	specs := make([]fsm.Spec, 0, len(items.Members))
	for _, i := range items.Indexes() {
		if !items.NotNull(i, decode.KindObject) {
			continue
		}
		if _, ok := items.Object(i); !ok {
			continue
		}
		var spec fsm.Spec
		if err := remarshal(items.Members[i], &spec); err != nil {
			items.Rule(i, err.Error())
			continue
		}
		for n := range spec.Agents {
			if err := preset.CheckAgent(spec.Agents[n].ID, spec.Agents[n].Command, spec.Agents[n].Texts()); err != nil {
				items.Rule(i, "spec "+decode.Truncate(spec.ID, 64)+": "+err.Error())
			}
		}
		specs = append(specs, spec)
	}
	return specs
}

// remarshal converts a decoded JSON value to a typed one. Its errors name the member and the type,
// never the value.
func remarshal(v, into any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return errors.New("can't be read")
	}
	err = json.Unmarshal(text, into)
	var typed *json.UnmarshalTypeError
	if errors.As(err, &typed) {
		return errors.New(typed.Field + " can't be a " + typed.Value)
	}
	if err != nil {
		return errors.New("can't be read")
	}
	return nil
}

// SpecDelete handles DELETE /api/v1/operator/specs/{id}. Ids may contain slashes.
func (s *Server) SpecDelete(c *request.Call) (response.Response, error) {
	body := &fsm.SpecDeleteBody{ID: strings.TrimPrefix(c.Params.ByName("id"), "/")}
	if fsm.Validate(body) != nil {
		return response.Response{}, response.NotFound()
	}
	if _, err := c.Propose(body); err != nil {
		return response.Response{}, response.NotFoundAs(err, "Sandbox Spec not found")
	}
	return response.OK(wire.Success{Success: true})
}
