package httpapi

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/wire"
)

// schema is a schema of OpenAPI 3.0.
type schema = map[string]any

// schemas makes schemas of what readers ask for and of Go types. Those that the notes name are
// components, which the others refer to.
type schemas struct {
	types  map[string]string // the component of a Go type, by the type's name
	bodies map[string]string // the component of a body's member, by shape
	// orNull are the components that null is a value of.
	orNull map[string]bool
	// values are the constants by "package.Name", enums those of a type of texts by "package.Type".
	values  map[string]any
	enums   map[string][]string
	missing func(format string, args ...any)
}

func newSchemas(t *testing.T) *schemas {
	s := &schemas{
		types: map[string]string{}, bodies: map[string]string{}, orNull: map[string]bool{}, missing: t.Errorf,
	}
	s.values, s.enums = constants(t)
	return s
}

// constants reads the constants of the packages whose rules the notes name: the values by
// "package.Name", and the texts of each type of strings by "package.Type", in their order.
func constants(t *testing.T) (values map[string]any, enums map[string][]string) {
	values, enums = map[string]any{}, map[string][]string{}
	for _, dir := range []string{"../fsm", "../cluster", ".", "operators", "request", "decode", "legacy", "git"} {
		set := token.NewFileSet()
		var files []*ast.File
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		// What is imported is not looked at: no constant here is made of another package's.
		config := types.Config{Error: func(error) {}, Importer: noImporter{}, IgnoreFuncBodies: true}
		checked, _ := config.Check(dir, set, files, nil)
		scope := checked.Scope()
		all := scope.Names()
		slices.SortFunc(all, func(a, b string) int { return int(scope.Lookup(a).Pos() - scope.Lookup(b).Pos()) })
		for _, name := range all {
			c, is := scope.Lookup(name).(*types.Const)
			if !is {
				continue
			}
			value := constant.Val(c.Val())
			if c.Val().Kind() == constant.Float {
				value, _ = constant.Float64Val(c.Val())
			}
			values[checked.Name()+"."+name] = value
			named, typed := c.Type().(*types.Named)
			if text, isText := constant.Val(c.Val()).(string); typed && isText && text != "" {
				key := checked.Name() + "." + named.Obj().Name()
				enums[key] = append(enums[key], text)
			}
		}
	}
	enums["httpapi.triggers"], enums["httpapi.hookEvents"] = triggers(), hookEvents()
	return values, enums
}

// noImporter imports nothing.
type noImporter struct{}

func (noImporter) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not read", path)
}

// ofMember is the schema of a value that a reader asks for.
func (s *schemas) ofMember(m *decode.Member) schema {
	if name := s.bodies[shape(m)]; name != "" {
		return s.reference(name, !m.NotNull)
	}
	return s.inlineMember(m)
}

func (s *schemas) inlineMember(m *decode.Member) schema {
	out := schema{}
	set := func(key string, value any, there bool) {
		if there {
			out[key] = value
		}
	}
	set("type", m.Type, m.Type != "")
	set("format", m.Format, m.Format != "")
	set("maxLength", m.MaxLength, m.MaxLength > 0)
	set("maxItems", m.MaxItems, m.MaxItems > 0)
	set("minimum", m.Minimum, m.Minimum != nil)
	set("maximum", m.Maximum, m.Maximum != nil)
	set("default", m.Default, m.Default != nil)
	set("nullable", true, !m.NotNull)
	set("additionalProperties", false, m.Strict)
	if m.Enum != nil {
		out["enum"] = enumOf(m.Enum, !m.NotNull)
	}
	switch {
	case m.Each != nil && m.Type == "array":
		out["items"] = s.ofMember(m.Each)
	case m.Each != nil && m.Type == "object":
		out["additionalProperties"] = s.ofMember(m.Each)
	case m.Type == "object":
		properties := schema{}
		var required []string
		for _, name := range slices.Sorted(maps.Keys(m.Members)) {
			properties[name] = s.ofMember(m.Members[name])
			if m.Members[name].Required {
				required = append(required, name)
			}
		}
		out["properties"] = properties
		set("required", required, required != nil)
	}
	return out
}

// shape identifies what is read of an object, wherever it stands. Scalars have none.
func shape(m *decode.Member) string {
	if m.Type != "object" || len(m.Members) == 0 && m.Each == nil {
		return ""
	}
	alone := *m
	alone.Required, alone.NotNull = false, false
	text, err := json.Marshal(alone)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// ofType is the schema of what encoding/json makes of a type.
func (s *schemas) ofType(t reflect.Type) schema {
	if t.Kind() == reflect.Pointer {
		return s.nullable(s.ofType(t.Elem()))
	}
	if name := s.types[t.String()]; name != "" {
		return s.reference(name, false)
	}
	return s.inlineType(t)
}

func (s *schemas) inlineType(t reflect.Type) schema {
	if values := s.enums[t.String()]; values != nil && t.Kind() == reflect.String {
		return schema{"type": "string", "enum": enumOf(values, false)}
	}
	switch {
	case t == reflect.TypeFor[wire.Time]() || t == reflect.TypeFor[time.Time]():
		return schema{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return schema{"nullable": true} // any value; readers of OpenAPI 3.0 differ about null without it
	}
	switch t.Kind() {
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	case reflect.Int, reflect.Int64, reflect.Uint, reflect.Uint64:
		return schema{"type": "integer"}
	case reflect.Slice:
		return schema{"type": "array", "items": s.ofType(t.Elem())}
	case reflect.Map:
		return s.keyed(schema{"type": "object", "additionalProperties": s.ofType(t.Elem())}, t.Key().String())
	case reflect.Struct:
		out := schema{"type": "object", "properties": schema{}, "additionalProperties": false}
		s.fields(t, out)
		return out
	}
	s.missing("%s has no schema", t)
	return schema{}
}

// keyed makes the values of a map the members that the constants of a type name.
func (s *schemas) keyed(out schema, constants string) schema {
	if s.enums[constants] == nil {
		return out
	}
	properties := schema{}
	for _, name := range s.enums[constants] {
		properties[name] = out["additionalProperties"]
	}
	out["properties"], out["additionalProperties"] = properties, false
	return out
}

// fields adds a struct's fields, those of embedded structs included.
func (s *schemas) fields(t reflect.Type, out schema) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "":
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			s.fields(embedded, out)
		default:
			typ := f.Type
			if required, _ := out["required"].([]string); !strings.Contains(options, "omit") {
				if !slices.Contains(required, name) { // an embedded struct may have it, too
					out["required"] = append(required, name)
				}
			} else if typ.Kind() == reflect.Pointer {
				typ = typ.Elem() // it is left out, never null
			}
			out["properties"].(schema)[name] = s.ofType(typ)
		}
	}
}

// reference refers to a component.
func (s *schemas) reference(name string, orNull bool) schema {
	ref := schema{"$ref": "#/components/schemas/" + name}
	if orNull && !s.orNull[name] {
		return schema{"nullable": true, "allOf": []any{ref}}
	}
	return ref
}

// nullable adds null to a schema.
func (s *schemas) nullable(one schema) schema {
	if ref, is := one["$ref"].(string); is {
		return s.reference(filepath.Base(ref), true)
	}
	one["nullable"] = true
	if values, is := one["enum"].([]any); is {
		one["enum"] = append(values, nil)
	}
	return one
}

func enumOf(values []string, orNull bool) []any {
	var out []any
	for _, v := range values {
		out = append(out, v)
	}
	if orNull {
		out = append(out, nil)
	}
	return out
}

// normal returns what v is as decoded JSON.
func normal(t testing.TB, v any) schema {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out schema
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
