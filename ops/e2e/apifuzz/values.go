package apifuzz

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

// secretText is a value that no response may contain.
type secretText string

// generator generates values from schemas.
type generator struct {
	rng *rand.Rand
	// ids returns an id for a member or parameter of that name, "" for no preference.
	ids func(name string) string
	// secret and mcpSecret are the values of all members that hold a secret. Those of an MCP
	// configuration are returned to their owner.
	secret, mcpSecret string
}

// deepest bounds the nesting of values.
const deepest = 6

// value generates a value of the schema; name is the member's.
func (g *generator) value(ref *openapi3.SchemaRef, name string, depth int) any {
	s := ref.Value
	mcp := ref.Ref == "#/components/schemas/MCPConfig"
	if mcp {
		own := *g
		own.secret = g.mcpSecret
		g = &own
	}
	switch {
	case s.Nullable && g.chance(15):
		return nil
	case len(s.AllOf) > 0:
		return g.value(s.AllOf[0], name, depth)
	case len(s.OneOf) > 0:
		return g.value(pick(g.rng, s.OneOf), name, depth)
	case len(s.Enum) > 0:
		return pick(g.rng, s.Enum)
	}
	switch {
	case s.Type.Is("string"):
		return g.text(s, name)
	case s.Type.Is("integer"):
		if id := g.ids(name); id != "" {
			return rawJSON(id)
		}
		return g.integer(s)
	case s.Type.Is("number"):
		return pick(g.rng, []any{0, 1.5, -2.25, 1e300, 5e-324, 1})
	case s.Type.Is("boolean"):
		return g.chance(50)
	case s.Type.Is("array"):
		return g.list(s, name, depth)
	case s.Type.Is("object"):
		return g.object(s, depth)
	}
	return pick(g.rng, []any{"x", 1, true, nil})
}

func (g *generator) chance(percent int) bool { return g.rng.IntN(100) < percent }

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

func (g *generator) text(s *openapi3.Schema, name string) any {
	if s.Format == "password" {
		return secretText(g.secret)
	}
	if id := g.ids(name); id != "" {
		return id
	}
	if name == "command" {
		return "no-such-program" // a spec's command is executed
	}
	switch s.Format {
	case "uuid":
		return fmt.Sprintf("%08x-0000-4000-8000-%012x", g.rng.Uint32(), g.rng.Uint32())
	case "date-time":
		return pick(g.rng,
			[]string{
				"2026-01-02T03:04:05Z",
				"2026-01-02T03:04:05.123456+02:00",
				"1970-01-01T00:00:00",
				"9999-12-31T23:59:59Z",
				time.Now().UTC().Format(time.RFC3339),
			})
	}
	if text, there := s.Example.(string); there && (s.Pattern != "" || g.chance(80)) {
		return text
	}
	text := pick(g.rng, plainTexts())
	if s.MaxLength != nil && g.chance(5) && *s.MaxLength < 5000 {
		text = strings.Repeat("é", int(*s.MaxLength)) // the longest allowed
	}
	if text == "" && s.MinLength > 0 {
		text = "x"
	}
	return text
}

// plainTexts are unusual, valid texts.
func plainTexts() []string {
	return []string{"", "a", "Hello, world", "naïve café", "日本語テキスト",
		"👩‍👩‍👧‍👦🏳️‍🌈", "\u202eevil\u202c", "a\u0301\u0327", "line\nfeed\ttab",
		"quote\"back\\slash/",
		"<script>alert(1)</script>", "' OR '1'='1", "${HOME} $(id) `id`", "%s%n%x", "../../etc/passwd", "null", "true", "0",
		"\u2028\u2029", "\ufeffbom", "{{7*7}}", "main"}
}

func (g *generator) integer(s *openapi3.Schema) any {
	low, high := int64(-3), int64(300)
	if s.Min != nil {
		low = int64(*s.Min)
	}
	if s.Max != nil {
		high = int64(*s.Max)
	}
	switch n := g.rng.IntN(10); {
	case n == 0:
		return low
	case n == 1:
		return high
	case n == 2 && s.Max == nil:
		return int64(9223372036854775807)
	case high <= low:
		return low
	}
	return low + g.rng.Int64N(high-low+1)
}

func (g *generator) list(s *openapi3.Schema, name string, depth int) any {
	n := g.rng.IntN(4)
	if depth > deepest {
		n = 0
	}
	n = max(n, int(s.MinItems))
	list := make([]any, n)
	for i := range list {
		list[i] = g.value(s.Items, name, depth+1)
	}
	return list
}

func (g *generator) object(s *openapi3.Schema, depth int) any {
	m := map[string]any{}
	often := 35
	if g.chance(10) {
		often = 100
	}
	for _, name := range sorted(s.Properties) {
		if slices.Contains(s.Required, name) || depth <= deepest && g.chance(often) {
			m[name] = g.value(s.Properties[name], name, depth+1)
		}
	}
	if example, there := s.Example.(map[string]any); there {
		return clone(example) // it will be made invalid
	}
	if more := s.AdditionalProperties.Schema; more != nil && depth <= deepest {
		for range g.rng.IntN(3) {
			m[pick(g.rng, []string{"A", "NPM_TOKEN", "k", "x-y", "é"})] = g.value(more, "", depth+1)
		}
	}
	return m
}

// clone copies a JSON value.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := make(map[string]any, len(v))
		for name, e := range v {
			m[name] = clone(e)
		}
		return m
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = clone(e)
		}
		return list
	}
	return v
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
