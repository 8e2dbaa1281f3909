package apifuzz

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/getkin/kin-openapi/openapi3"
)

// operation is one described route.
type operation struct {
	id, method, path string
	// access is "open", "user", "operator" or "sandbox".
	access string
	// streams is set if the response may have no end.
	streams bool
	op      *openapi3.Operation
	params  []*openapi3.Parameter
	body    *openapi3.SchemaRef
}

// describe reads an OpenAPI document.
func describe(document []byte) ([]*operation, error) {
	doc, err := openapi3.NewLoader().LoadFromData(document)
	if err != nil {
		return nil, fmt.Errorf("reading the description: %w", err)
	}
	if err := doc.Validate(context.Background(), openapi3.DisableExamplesValidation()); err != nil {
		return nil, fmt.Errorf("the description: %w", err)
	}
	var list []*operation
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			o := &operation{
				id:      op.OperationID,
				method:  method,
				path:    path,
				access:  accessOf(op),
				streams: op.Extensions["x-stream"] == true,
				op:      op,
			}
			for _, p := range op.Parameters {
				o.params = append(o.params, p.Value)
			}
			if op.RequestBody != nil {
				if media := op.RequestBody.Value.Content.Get("application/json"); media != nil {
					o.body = media.Schema
				}
			}
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *operation) int { return cmp.Compare(a.id, b.id) })
	return list, nil
}

func accessOf(op *openapi3.Operation) string {
	if op.Security == nil || len(*op.Security) == 0 {
		return "open"
	}
	if op.Extensions["x-operator"] == true {
		return "operator"
	}
	for _, one := range *op.Security {
		if _, there := one["sandbox"]; there {
			return "sandbox"
		}
	}
	return "user"
}
