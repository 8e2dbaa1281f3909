package tools

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// SchemaOf returns the schema of the arguments that are decoded into T, a struct. A field's description
// is its tag jsonschema. What the library infers otherwise, or has no tag for, is in two of ours: tool is
// "required", or "-" for a member of the action that is no argument; enum has the values of a text,
// separated by commas. The library takes a member without omitempty for required, but an action keeps
// its empty members.
func SchemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) // only for types that JSON has not
	}
	amend(reflect.TypeFor[T](), s)
	return s
}

// amend makes an inferred schema one for a model: arguments are left out, not null, and what is unknown
// is refused where it is read.
func amend(t reflect.Type, s *jsonschema.Schema) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if len(s.Types) == 2 {
		s.Type, s.Types = s.Types[1], nil // the first is null
	}
	if t.Kind() == reflect.Slice {
		amend(t.Elem(), s.Items)
	}
	if t.Kind() != reflect.Struct {
		return
	}
	s.AdditionalProperties, s.Required = nil, nil
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		one := s.Properties[name]
		switch f.Tag.Get("tool") {
		case "-":
			delete(s.Properties, name)
			s.PropertyOrder = slices.DeleteFunc(s.PropertyOrder, func(n string) bool { return n == name })
			continue
		case "required":
			s.Required = append(s.Required, name)
		}
		if values := f.Tag.Get("enum"); values != "" {
			for v := range strings.SplitSeq(values, ",") {
				one.Enum = append(one.Enum, v)
			}
		}
		amend(f.Type, one)
	}
}

// Parameters returns a schema as a tool's definition has it, with the parameters that every tool has.
func Parameters(s *jsonschema.Schema) json.RawMessage {
	b, err := json.Marshal(s)
	members := map[string]any{"required": []string{}}
	if err == nil {
		err = json.Unmarshal(b, &members)
	}
	if err != nil {
		panic(err) // an inferred schema encodes to an object
	}
	return WithCommon(members)
}

// texts are the values of an enum.
func texts(enum []any) []string {
	list := make([]string, len(enum))
	for i, v := range enum {
		list[i] = fmt.Sprint(v)
	}
	return list
}
