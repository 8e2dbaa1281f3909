package httpapi

import (
	"encoding/json"
	"errors"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// specsBody is the answer of the operator's spec routes.
type specsBody struct {
	Items []specRow `json:"items"`
}

// specRow is a whole spec, as it is stored, and the state of its warm pool.
type specRow struct {
	*fsm.Spec
	Members poolBody `json:"pool_members"`
}

// poolBody counts the members of a warm pool: those a start can claim, and all.
type poolBody struct {
	Ready int `json:"ready"`
	All   int `json:"all"`
}

// handleSpecList handles GET /api/v1/operator/specs.
func (s *Server) handleSpecList(c *call) (answer, error) {
	v, err := c.view()
	if err != nil {
		return answer{}, err
	}
	b := specsBody{Items: []specRow{}}
	for _, spec := range v.Specs() {
		row := specRow{Spec: spec, Members: poolBody{All: len(v.PoolMembers(spec.ID))}}
		v.ClaimableMember(spec.ID, "", func(string) bool {
			row.Members.Ready++
			return true
		})
		b.Items = append(b.Items, row)
	}
	return ok(b)
}

// handleSpecPool handles POST /api/v1/operator/specs/{id}/pool: {"size": 3} keeps
// so many sandboxes of the spec started without an owner. Ids may hold slashes.
func (s *Server) handleSpecPool(c *call) (answer, error) {
	id, named := strings.CutSuffix(strings.TrimPrefix(c.params.ByName("id"), "/"), "/pool")
	if !named {
		return answer{}, errNotFound()
	}
	size := c.object().mustInteger("size")
	if err := c.check(); err != nil {
		return answer{}, err
	}
	out, err := c.once(func() (fsm.Body, secretWrites, error) {
		return &fsm.SpecPoolBody{ID: id, Size: int(size)}, secretWrites{}, nil
	}, func(fsm.Result) (answer, error) {
		return ok(success{Success: true})
	})
	return out, notFoundAs(err, "Sandbox Spec not found")
}

// handleSpecApply handles POST /api/v1/operator/specs: {"specs": [fsm.Spec, …],
// "replace": bool}. Position and creation time are the cluster's to set.
func (s *Server) handleSpecApply(c *call) (answer, error) {
	o := c.object()
	body := &fsm.SpecApplyBody{Specs: readSpecs(o), Replace: o.booleanOr("replace", false)}
	if err := c.check(); err != nil {
		return answer{}, err
	}
	return c.once(func() (fsm.Body, secretWrites, error) {
		return body, secretWrites{}, nil
	}, func(fsm.Result) (answer, error) {
		return ok(success{Success: true})
	})
}

// readSpecs reads the specs by way of fsm's own JSON: only operators send them,
// and a spec's rules are in its Validate.
func readSpecs(o object) []fsm.Spec {
	if !o.require("specs") || !o.notNull("specs", kindList) {
		return nil
	}
	items, ok := o.list("specs")
	if !ok {
		return nil
	}
	specs := make([]fsm.Spec, 0, len(items.m))
	for _, i := range items.indexes() {
		if !items.notNull(i, kindObject) {
			continue
		}
		if _, ok := items.object(i); !ok {
			continue
		}
		var spec fsm.Spec
		if err := remarshal(items.m[i], &spec); err != nil {
			items.rule(i, err.Error())
			continue
		}
		specs = append(specs, spec)
	}
	return specs
}

// remarshal turns a decoded JSON value into a typed one. Its errors name the
// member and the type, not the value.
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

// handleSpecDelete handles DELETE /api/v1/operator/specs/{id}. Ids may hold
// slashes.
func (s *Server) handleSpecDelete(c *call) (answer, error) {
	body := &fsm.SpecDeleteBody{ID: strings.TrimPrefix(c.params.ByName("id"), "/")}
	if body.Validate() != nil {
		return answer{}, errNotFound()
	}
	if _, err := c.propose(body); err != nil {
		return answer{}, notFoundAs(err, "Sandbox Spec not found")
	}
	return ok(success{Success: true})
}
