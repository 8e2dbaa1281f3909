package httpapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// operation describes a route.
func (d *descriptionWriter) operation(r route) schema {
	n, there := d.notes.Operations[r.name]
	if !there || n.Summary == "" {
		d.t.Errorf("openapi.yaml: %s needs a summary", r.name)
	}
	out := schema{
		"operationId": r.name, "summary": n.Summary, "tags": []string{d.tag(r)},
		"responses": d.responses(r, n), "security": security(r),
	}
	if parameters := d.parametersOf(r); len(parameters) > 0 {
		out["parameters"] = parameters
	}
	if r.access == operator {
		out["x-operator"] = true
	}
	if n.Stream {
		out["x-stream"] = true
	}
	if body := d.requestBody(r, n); body != nil {
		out["requestBody"] = body
	}
	return out
}

func (d *descriptionWriter) tag(r route) string {
	first, _, _ := strings.Cut(r.name, ".")
	for _, tag := range slices.Sorted(maps.Keys(d.notes.Tags)) {
		if slices.Contains(d.notes.Tags[tag], first) && r.access != operator {
			return tag
		}
	}
	return map[bool]string{true: "operator", false: "health"}[r.access == operator]
}

func security(r route) []any {
	switch r.access {
	case user, operator:
		keys := []any{schema{"session": []any{}}, schema{"bearer": []any{}}}
		if r.access == user { // a session never acts as an operator
			keys = append(keys, schema{"cookie": []any{}})
		}
		return keys
	case sandboxKey:
		return []any{schema{"sandbox": []any{}}}
	}
	return []any{}
}

// responses are the answer to success, and the errors of all routes of the kind.
func (d *descriptionWriter) responses(r route, n operationNotes) schema {
	a := d.answers[r.name]
	media, body := typeJSON, schema{"type": "string"}
	switch _, text := a.Body.(response.PlainText); {
	case a.Status == http.StatusNoContent:
	case n.Media == "" && !text:
		body = d.inAnswer(r, reflect.TypeOf(a.Body))
	case n.Media == "" || strings.HasPrefix(n.Media, "text/"):
		media = cmp.Or(n.Media, "text/plain")
	default:
		media, body["format"] = n.Media, "binary"
	}
	out := schema{strconv.Itoa(a.Status): described(cmp.Or(n.Done, "Done."), media, body)}
	if a.Status == http.StatusNoContent {
		out = schema{"204": schema{"description": cmp.Or(n.Done, "Done.")}}
	}
	also := map[string]any{}
	if r.access != open {
		also["401"], also["422"], also["429"], also["503"] = "Unauthorized", "Invalid", "TooMany", "Away"
	}
	if r.access == operator {
		also["403"] = "Forbidden"
	}
	if r.method != http.MethodGet {
		also["400"], also["413"], also["415"] = "Unreadable", "TooLarge", "Encoding"
	}
	if r.method == http.MethodPost {
		also["409"] = "Conflict"
	}
	if strings.ContainsAny(r.path, ":*") || r.direct {
		also["404"] = "NotFound"
	}
	for status, response := range n.Also {
		d.used["operations."+r.name+".also."+status] = !reflect.DeepEqual(also[status], response)
		also[status] = response
	}
	for status, response := range also {
		switch response := response.(type) {
		case string:
			out[status] = schema{"$ref": "#/components/responses/" + response}
		case schema:
			out[status] = described(
				response["description"].(string), typeJSON, d.reference(response["schema"].(string), false))
		}
	}
	return out
}

const typeJSON = "application/json"

// described is a response.
func described(words, media string, body schema) schema {
	return schema{"description": words, "content": schema{media: schema{"schema": body}}}
}

// inAnswer is the schema of an answer: one that a batch did not find is null.
func (d *descriptionWriter) inAnswer(r route, t reflect.Type) schema {
	n := d.notes.Operations[r.name]
	if n.Answer != "" {
		return d.reference(n.Answer, false)
	}
	out := d.ofType(t)
	d.changeFields("operations."+r.name, out, n.Fields)
	return d.change("operations."+r.name+".success", out, n.Success)
}

// requestBody is what the handler reads. A POST that reads nothing may have an empty body; run refuses
// members of an operator's.
func (d *descriptionWriter) requestBody(r route, n operationNotes) schema {
	if r.upload {
		binary := schema{"schema": schema{"type": "string", "format": "binary"}}
		return schema{"required": true, "content": schema{uploadType: binary}}
	}
	m := &d.reads[r.name].Body
	if m.Type == "" && r.method != http.MethodPost {
		return nil
	}
	required := m.Type != ""
	m.Type, m.NotNull, m.Strict = "object", true, m.Strict || !required && r.access == operator
	body := d.ofMember(m)
	if n.Request != "" {
		body = d.reference(n.Request, false)
	}
	d.changeFields("operations."+r.name, body, n.Body)
	return schema{"required": required, "content": schema{typeJSON: schema{"schema": body}}}
}

// uploadType is the type of an upload: a snapshot.
const uploadType = "application/x-tar"

var pathParameter = regexp.MustCompile(`\{([a-z_]+)\}`)

// parametersOf are the parameters of the path and of the query, and the headers that all routes of the
// kind have.
func (d *descriptionWriter) parametersOf(r route) (out []any) {
	path := describedPath(r)
	for _, at := range pathParameter.FindAllStringSubmatchIndex(path, -1) {
		one := schema{"name": path[at[2]:at[3]], "in": "path", "required": true, "schema": schema{"type": "string"}}
		out = append(out, d.parameter(r, path[:at[1]], one))
	}
	query := d.reads[r.name].Parameters
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if name == "stale" {
			continue // every route of the kind has it
		}
		query[name].NotNull = true
		one := schema{"name": name, "in": "query", "schema": d.inlineMember(query[name])}
		if query[name].Required {
			one["required"] = true
		}
		out = append(out, d.parameter(r, name, one))
	}
	for _, one := range d.notes.Operations[r.name].Parameters {
		out = append(out, one)
	}
	_, ofNode := query["node"]
	if r.method == http.MethodGet && (r.access == user || r.access == operator) && !ofNode {
		out = append(out,
			d.parameter(r, "stale", schema{"name": "stale", "in": "query", "schema": schema{"type": "boolean"}}),
			d.parameter(r, request.HeaderConsistency, schema{
				"name": request.HeaderConsistency, "in": "header", "schema": schema{"type": "string", "enum": []any{"stale"}},
			}))
	}
	if r.method == http.MethodPost && !r.upload && r.access != signIn {
		out = append(out, d.parameter(r, request.HeaderIdempotencyKey, schema{
			"name": request.HeaderIdempotencyKey, "in": "header",
			"schema": schema{"type": "string", "minLength": 1, "maxLength": request.MaxIdempotencyKey},
		}))
	}
	return out
}

// parameter makes a component of a parameter. Those of one name that differ have the operation in
// theirs.
func (d *descriptionWriter) parameter(r route, key string, one schema) any {
	one = d.change("parameters."+key, one, d.notes.Parameters[key])
	own := r.name + " " + key
	one = d.change("parameters."+own, one, d.notes.Parameters[own])
	name := one["name"].(string) + "_" + one["in"].(string)
	if other := d.parts.parameters[name]; other != nil && !reflect.DeepEqual(normal(d.t, other), normal(d.t, one)) {
		name = r.name + "_" + name
	}
	d.parts.parameters[name] = one
	return schema{"$ref": "#/components/parameters/" + name}
}

// change merges a change into a schema (RFC 7396) and notes whether it changed anything.
func (d *descriptionWriter) change(where string, into, change schema) schema {
	if change == nil {
		return into
	}
	change = d.withConstants(change).(schema)
	out, _ := merge(normal(d.t, into), normal(d.t, change)).(schema)
	d.used[where] = d.used[where] || !reflect.DeepEqual(out, normal(d.t, into))
	return out
}

// withConstants puts values in the place of constants' names: "maximum: fsm.maxCPU",
// "enum: fsm.Role", "enum: [fsm.DrainFirst]".
func (d *descriptionWriter) withConstants(v any) any {
	switch v := v.(type) {
	case schema:
		out := schema{}
		for key, one := range v {
			if values := d.enums[fmt.Sprint(one)]; key == "enum" && values != nil {
				out[key] = enumOf(values, v["nullable"] == true)
				continue
			}
			out[key] = d.withConstants(one)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, one := range v {
			out[i] = d.withConstants(one)
		}
		return out
	case string:
		if value, is := d.values[v]; is {
			return value
		}
		if constantName.MatchString(v) {
			d.t.Errorf("openapi.yaml: no constant is %s", v)
		}
	}
	return v
}

var constantName = regexp.MustCompile(`^(fsm|cluster|httpapi|operators|request|decode|legacy|git)\.[A-Za-z]+$`)

// changeFields changes members of a schema in place.
func (d *descriptionWriter) changeFields(where string, into schema, changes map[string]schema) {
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		holder, key := d.find(where, into, path)
		if holder == nil {
			continue
		}
		one, _ := holder[key].(schema)
		if one == nil {
			one = schema{}
		}
		holder[key] = d.change(where+"."+path, one, changes[path])
	}
}

// like gives scalars and lists of a schema the bounds that a component's members of the same names
// have.
func (d *descriptionWriter) like(name string, into schema, path, of string) {
	component, member, nested := strings.Cut(of, ".")
	sent := normal(d.t, d.parts.schemas[component])
	if nested {
		sent, _ = sent["properties"].(schema)[member].(schema)
	}
	holder, key := d.find(name, into, path)
	if holder == nil || sent["properties"] == nil {
		d.t.Errorf("openapi.yaml: %s.%s can't be like %s", name, path, of)
		return
	}
	properties := holder[key].(schema)["properties"].(schema)
	for member, one := range sent["properties"].(schema) {
		like, _ := one.(schema)
		own, there := properties[member].(schema)
		if !there || like["type"] == nil || like["type"] == "object" {
			continue
		}
		if like["type"] != "array" && own["nullable"] == nil { // what a request may leave out is there in an answer
			delete(like, "nullable")
		}
		properties[member] = like
	}
}

// find returns where a member's schema stands: the object, and the key in it.
func (d *descriptionWriter) find(where string, in schema, path string) (holder schema, key string) {
	at := in
	for _, part := range strings.Split(path, ".") {
		if holder != nil {
			if at, _ = holder[key].(schema); at == nil {
				d.t.Errorf("openapi.yaml: %s has no %s", where, path)
				return nil, ""
			}
		}
		switch part {
		case "[]":
			holder, key = at, "items"
		case "{}":
			holder, key = at, "additionalProperties"
		default:
			if at["properties"] == nil {
				at["properties"] = schema{}
			}
			holder, key = at["properties"].(schema), part
		}
	}
	return holder, key
}

// merge applies a JSON merge patch.
func merge(into, change any) any {
	patch, is := change.(schema)
	if !is {
		return change
	}
	object, _ := into.(schema)
	if object == nil {
		object = schema{}
	}
	for key, one := range patch {
		if one == nil {
			delete(object, key)
		} else {
			object[key] = merge(object[key], one)
		}
	}
	return object
}
