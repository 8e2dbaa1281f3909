package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/julienschmidt/httprouter"
	"go.yaml.in/yaml/v3"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// notes are what no code says of the API: prose, examples, and rules that are only in words or in
// functions (openapi.yaml).
type notes struct {
	Head schema
	// Tags has the first parts of the routes' names that have a tag.
	Tags       map[string][]string
	Operations map[string]operationNotes
	// Parameters are changes by "name", by "operation name" and, of the path, by the path as far as the
	// parameter.
	Parameters map[string]schema
	// Responses are the errors that operations share, with their components.
	Responses map[string]struct{ Description, Schema string }
	Schemas   map[string]schemaNotes
}

// operationNotes are the notes of one operation.
type operationNotes struct {
	Summary string
	// Also has other responses by status: the name of a shared one, or all of it.
	Also map[string]any
	// Done is the description of success, and Media the type of an answer that is not JSON.
	Done, Media string
	// Stream is set for an answer that may take long.
	Stream bool
	// Request and Answer are the components of bodies, where no reader or type says them.
	Request, Answer string
	// Success is a change of the answer's schema, Parameters are those that no reader asks for.
	Success    schema
	Parameters []schema
	// Body and Fields are changes of members of the request and of the answer.
	Body, Fields map[string]schema
}

// schemaNotes are the notes of one component.
type schemaNotes struct {
	// Of says what the component describes: "type" and a Go type; "body", an operation and a member of
	// its body; "settings"; nothing where all of it is in Schema.
	Of string
	// Like has the members whose scalars and lists are those of "Component" or "Component.member";
	// Keys is the type of the constants that name a map's members.
	Like   map[string]string
	Keys   string
	Schema schema
	// Fields are changes of members by their paths: "limits.cpu"; "[]" is an item, "{}" a value.
	Fields map[string]schema
}

// descriptionWriter generates openapi.json.
type descriptionWriter struct {
	*schemas
	t       *testing.T
	notes   notes
	reads   map[string]*decode.Reads
	answers map[string]response.Response
	used    map[string]bool // the notes that changed something
	parts   struct{ schemas, parameters schema }
}

// unseen are the answers that the sample requests don't get, and those whose bodies are encoded already
// or may have null where the sample's have none.
func unseen() map[string]any {
	return map[string]any{
		"conversation.search": wire.Page[conversationBody]{}, "conversation.list": []*conversationBody{},
		"start_task.get": []*startTaskBody{}, "start_task.search": wire.Page[startTaskBody]{},
		"sandbox.secret": response.PlainText(""), "hold.release": wire.Success{}, "orphan.restore": wire.RestoredSandbox{},
		"orphan.delete": wire.Success{}, "ready": "", "client.list": wire.Page[wire.Client]{},
		"client.drain": wire.Success{}, "client.lost": wire.Success{}, "client.enable": wire.Success{},
		"event.search":     wire.Page[map[string]any]{},
		"snapshot.restore": wire.RestoreReport{}, "openapi": map[string]any{}, "session.page": "",
		"docs":           "",
		"session.create": wire.SignedIn{}, "session.look": wire.CodeOwner{}, "device.authorize": wire.DeviceCodes{},
		"device.look": wire.Device{}, "device.allow": wire.Success{},
	}
}

// world is a harness in which every route has something to work on, with a request of the route.
func world(t *testing.T, r *route) (h *harness, req *http.Request, params httprouter.Params) {
	h = newHarness(t, func(c *Config) { c.Logs = endedLogs{} }).withSpec().withSettings()
	sb := h.createSandbox(h.alice)
	h.observe(sb, running())
	h.questioned(*r, sb)
	h.starting()
	if r.name == "device.token" {
		h.waits()
		h.allows()
	}
	conversation := h.conversation("alice", sb, speaksACP)
	h.withEvent(*r, sb, conversation)
	method, path, body := sampleRequest(*r, sb, conversation)
	switch noun, _, _ := strings.Cut(r.name, "."); {
	case r.name == "spec.pool":
		path, body = path+"/pool", `{"size":1}`
	case noun == "user" && r.access == operator:
		path = strings.ReplaceAll(r.path, ":id", "alice")
	case r.name == "webhook.conversation", r.name == "webhook.own_conversation":
		body = `{"id":"` + conversation + `"}`
	}
	req = httptest.NewRequest(method, path, strings.NewReader(body))
	req.Host = "example.org" // as in the address of a sample
	key := map[access]string{user: h.alice, operator: h.root}[r.access]
	if r.access == sandboxKey {
		key = h.secrets.last(fsm.SandboxKeyPath(sb))["key"]
	}
	req.Header.Set("X-Session-Api-Key", key)
	router := newRouter(func(_ *route, p httprouter.Params, _ http.ResponseWriter, _ *http.Request) {
		params = p
	}, []route{*r})
	router.ServeHTTP(httptest.NewRecorder(), req)
	return h, req, params
}

// record returns what the handler of a route asks for in a request, before it acts.
func record(t *testing.T, r route, picks map[string]string) *decode.Reads {
	reads := &decode.Reads{Key: string(fsm.ProviderGitHub), Picks: picks}
	if r.handle == nil {
		return reads
	}
	h, req, params := world(t, &r)
	c := &call{Call: request.New(h.server.calls, req, params), server: h.server}
	c.Problems.Reads, c.Query = reads, decode.Query{Problems: c.Problems}
	if r.access == operator {
		c.Restrict(&r.members)
	}
	_, _ = r.handle(h.server, c) // ends at its check
	return reads
}

// observe returns a route's answer to a valid request.
func observe(t *testing.T, r route) (out response.Response) {
	listed := unseen()[r.name]
	if r.handle == nil {
		return response.Response{Status: http.StatusOK, Body: listed}
	}
	h, req, _ := world(t, &r)
	handle := r.handle
	r.handle = func(s *Server, c *call) (response.Response, error) {
		a, err := handle(s, c)
		out = a
		return a, err
	}
	h.server.accessLog(newRouter(h.server.dispatch, []route{r})).ServeHTTP(httptest.NewRecorder(), req)
	out.Status = cmp.Or(out.Status, http.StatusOK)
	_, encoded := out.Body.(response.EncodedItems)
	switch {
	case listed == nil && out.Body == nil && out.Stream == nil:
		t.Errorf("%s did not answer the sample request: unseen needs its answer", r.name)
	case listed != nil && out.Body != nil && !encoded && r.name != "conversation.list":
		t.Errorf("%s answers the sample request with %T: unseen need not have it", r.name, out.Body)
	case listed != nil:
		out.Body = listed
	}
	return out
}

// generate returns openapi.json.
func generate(t *testing.T, from notes) []byte {
	d := &descriptionWriter{
		schemas: newSchemas(t), t: t, notes: from, used: map[string]bool{},
		reads: map[string]*decode.Reads{}, answers: map[string]response.Response{},
	}
	d.parts.schemas, d.parts.parameters = schema{}, schema{}
	all := routes()
	for _, r := range all {
		d.reads[r.name], d.answers[r.name] = record(t, r, nil), observe(t, r)
		if r.name == "conversation.start" {
			d.reads[r.name+"?type=image"] = record(t, r, map[string]string{"type": "image"})
		}
	}
	d.components()
	paths := schema{}
	left := maps.Clone(from.Operations)
	for _, r := range all {
		delete(left, r.name)
		path := describedPath(r)
		if paths[path] == nil {
			paths[path] = schema{}
		}
		paths[path].(schema)[strings.ToLower(r.method)] = d.operation(r)
	}
	for name := range left {
		t.Errorf("openapi.yaml: %s is no operation", name)
	}
	for key := range from.Parameters {
		if !d.used["parameters."+key] {
			t.Errorf("openapi.yaml: the parameter %s is none, or already so", key)
		}
	}
	for where, changes := range d.used {
		if !changes {
			t.Errorf("openapi.yaml: %s changes nothing", where)
		}
	}
	doc := normal(t, from.Head)
	doc["paths"] = paths
	components, _ := doc["components"].(schema)
	components["schemas"], components["parameters"] = d.parts.schemas, d.parts.parameters
	responses := schema{}
	for name, one := range from.Responses {
		responses[name] = described(one.Description, typeJSON, d.reference(one.Schema, false))
	}
	components["responses"] = responses
	return compact(t, normal(t, doc))
}

// components makes the schemas that the notes name.
func (d *descriptionWriter) components() {
	found := map[string]reflect.Type{}
	for _, name := range slices.Sorted(maps.Keys(d.answers)) {
		reach(reflect.TypeOf(d.answers[name].Body), found)
	}
	names := slices.Sorted(maps.Keys(d.notes.Schemas))
	for _, name := range names {
		kind, of, _ := strings.Cut(d.notes.Schemas[name].Of, " ")
		d.orNull[name] = d.notes.Schemas[name].Schema["nullable"] == true
		switch kind {
		case "type":
			d.types[of] = name
			if found[of] == nil {
				d.t.Fatalf("openapi.yaml: %s is of the type %s, which no answer has", name, of)
			}
		case "body":
			d.bodies[shape(d.member(name, of))] = name
		}
	}
	delete(d.bodies, "")
	for _, second := range []bool{false, true} { // what is like another comes after it
		for _, name := range names {
			n := d.notes.Schemas[name]
			if second == (n.Like != nil || n.Of == "settings") {
				d.parts.schemas[name] = d.component(name, n, found)
			}
		}
	}
}

// component makes one schema that the notes name.
func (d *descriptionWriter) component(name string, n schemaNotes, found map[string]reflect.Type) schema {
	out := schema{}
	switch kind, of, _ := strings.Cut(n.Of, " "); kind {
	case "type":
		out = d.inlineType(found[of])
	case "body":
		out = d.inlineMember(d.member(name, of))
		delete(out, "nullable")
	case "settings":
		out = d.storedSettings()
	}
	out = d.change("schemas."+name, out, n.Schema)
	for _, path := range slices.Sorted(maps.Keys(n.Like)) {
		d.like(name, out, path, n.Like[path])
	}
	d.changeFields("schemas."+name, out, n.Fields)
	if n.Keys != "" {
		out = d.keyed(out, n.Keys)
	}
	return out
}

// reach collects the types that a type's JSON has.
func reach(t reflect.Type, into map[string]reflect.Type) {
	if t == nil || into[t.String()] != nil {
		return
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		into[t.String()] = t
		reach(t.Elem(), into)
	case reflect.Struct:
		into[t.String()] = t
		for i := range t.NumField() {
			reach(t.Field(i).Type, into)
		}
	}
}

// member returns what "operation" or "operation member.member" of a component is.
func (d *descriptionWriter) member(component, of string) *decode.Member {
	operation, path, nested := strings.Cut(of, " ")
	if d.reads[operation] == nil {
		d.t.Fatalf("openapi.yaml: %s is of %s, which is no operation", component, operation)
	}
	m := &d.reads[operation].Body
	if !nested {
		return m
	}
	for _, part := range strings.Split(path, ".") {
		if part == "[]" || part == "{}" {
			m = m.Each
		} else {
			m = m.Members[part]
		}
		if m == nil {
			d.t.Fatalf("openapi.yaml: %s is of %s, and nothing reads %s", component, of, part)
		}
	}
	return m
}

// storedSettings is the answer of settings.get, a row of the table a member. Keys are not shown.
func (d *descriptionWriter) storedSettings() schema {
	properties := normal(d.t, d.parts.schemas["Settings"])["properties"].(schema)
	var required []string
	for _, row := range settingsTable {
		required = append(required, row.name)
		switch {
		case row.key != nil:
			properties[row.name] = schema{"type": "string", "nullable": true, "enum": []any{nil}}
		default:
			shown := reflect.TypeOf(row.show(&storedSettings{Settings: &fsm.Settings{}}))
			if row.read == nil || shown.Kind() == reflect.Struct {
				properties[row.name] = d.ofType(shown)
			}
		}
	}
	return schema{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// printed is how openapi.json stands in the tree: what fits into a line is one.
const printed = 150

// compact encodes a document.
func compact(t testing.TB, doc any) []byte {
	t.Helper()
	var b bytes.Buffer
	writeCompact(t, &b, doc, "")
	b.WriteByte('\n')
	return b.Bytes()
}

func writeCompact(t testing.TB, b *bytes.Buffer, v any, indent string) {
	line := &bytes.Buffer{}
	encoder := json.NewEncoder(line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		t.Fatal(err)
	}
	text := bytes.TrimSpace(line.Bytes())
	object, isObject := v.(schema)
	list, isList := v.([]any)
	if len(indent)+len(text) <= printed || len(object)+len(list) == 0 {
		b.Write(text)
		return
	}
	inner := indent + " "
	switch {
	case isObject:
		for i, key := range slices.Sorted(maps.Keys(object)) {
			b.WriteString(map[bool]string{true: "{\n", false: ",\n"}[i == 0] + inner + `"` + key + `": `)
			writeCompact(t, b, object[key], inner)
		}
		b.WriteString("\n" + indent + "}")
	case isList:
		for i, one := range list {
			b.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0] + inner)
			writeCompact(t, b, one, inner)
		}
		b.WriteString("\n" + indent + "]")
	}
}

// readNotes reads openapi.yaml, in which every key must be known.
func readNotes(t *testing.T) (n notes) {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(readFile(t, "openapi.yaml")))
	decoder.KnownFields(true)
	if err := decoder.Decode(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDescription_IsGenerated: openapi.json is what the code and openapi.yaml say (go generate).
func TestDescription_IsGenerated(t *testing.T) {
	got := generate(t, readNotes(t))
	if *update {
		if err := os.WriteFile("openapi.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if bytes.Equal(got, Description()) {
		return
	}
	want, stale := strings.Split(string(got), "\n"), strings.Split(string(Description()), "\n")
	at := 0
	for at < min(len(want), len(stale))-1 && want[at] == stale[at] {
		at++
	}
	t.Errorf("openapi.json is not what the code says: go generate ./httpapi, and read the difference, from line %d:\n"+
		"is      %s\nmust be %s", at+1, stale[at], want[at])
}
