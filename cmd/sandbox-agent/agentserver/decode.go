package agentserver

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// reader reads typed members out of a decoded JSON object and collects every
// error on the way (api-contract.md A.0.4).
type reader struct {
	errs []fieldError
}

func (d *reader) fail(typ, msg string, input any, loc ...string) {
	switch input.(type) {
	case map[string]any, []any:
		input = nil // may hold anything, a secret too
	}
	d.errs = append(d.errs, fieldError{Type: typ, Loc: append([]string{"body"}, loc...), Msg: msg, Input: input})
}

func (d *reader) value(text string, input any, loc ...string) {
	d.fail("value_error", "Value error, "+text, input, loc...)
}

func (d *reader) missing(loc ...string) { d.fail("missing", "Field required", nil, loc...) }

// str reads an optional string; nil for absent and null.
func (d *reader) str(m map[string]any, name string, loc ...string) *string {
	v, ok := m[name]
	if !ok || v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		d.fail("string_type", "Input should be a valid string", v, append(loc, name)...)
		return nil
	}
	return &s
}

// object reads an optional object; nil for absent and null.
func (d *reader) object(m map[string]any, name string, loc ...string) map[string]any {
	v, ok := m[name]
	if !ok || v == nil {
		return nil
	}
	o, ok := v.(map[string]any)
	if !ok {
		d.fail("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", nil, append(loc, name)...)
		return nil
	}
	return o
}

// list reads an optional array; nil for absent and null.
func (d *reader) list(m map[string]any, name string, loc ...string) []any {
	v, ok := m[name]
	if !ok || v == nil {
		return nil
	}
	l, ok := v.([]any)
	if !ok {
		d.fail("list_type", "Input should be a valid list", nil, append(loc, name)...)
		return nil
	}
	return l
}

// boolean reads an optional boolean, with the spellings of A.0.4.
func (d *reader) boolean(m map[string]any, name string, def bool, loc ...string) bool {
	v, ok := m[name]
	if !ok || v == nil {
		return def
	}
	switch t := v.(type) {
	case bool:
		return t
	case string:
		switch strings.ToLower(t) {
		case "true", "1", "yes", "y", "on", "t":
			return true
		case "false", "0", "no", "n", "off", "f":
			return false
		}
	case json.Number:
		switch t.String() {
		case "1", "1.0":
			return true
		case "0", "0.0":
			return false
		}
	}
	d.fail("bool_parsing", "Input should be a valid boolean, unable to interpret input", v, append(loc, name)...)
	return def
}

// positive reads an optional integer greater than 0.
func (d *reader) positive(m map[string]any, name string, def int64, loc ...string) int64 {
	v, ok := m[name]
	if !ok || v == nil {
		return def
	}
	loc = append(loc, name)
	text := ""
	switch t := v.(type) {
	case json.Number:
		text = t.String()
	case string:
		text = t
	default:
		d.fail("int_type", "Input should be a valid integer", v, loc...)
		return def
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(text, ".0"), 10, 64)
	if err != nil {
		d.fail("int_parsing", "Input should be a valid integer, unable to parse string as an integer", text, loc...)
		return def
	}
	if n <= 0 {
		d.fail("greater_than", "Input should be greater than 0", text, loc...)
		return def
	}
	return n
}

// enum reads an optional string that is one of values.
func (d *reader) enum(m map[string]any, name, def string, values []string, loc ...string) string {
	s := d.str(m, name, loc...)
	if s == nil {
		return def
	}
	if !slices.Contains(values, *s) {
		d.fail("enum", "Input should be "+oneOf(values), *s, append(loc, name)...)
		return def
	}
	return *s
}

func oneOf(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = "'" + v + "'"
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
}

// uuid reads an optional UUID as 32 lower-case hex digits; "" for absent.
func (d *reader) uuid(m map[string]any, name string, loc ...string) string {
	s := d.str(m, name, loc...)
	if s == nil {
		return ""
	}
	id, ok := parseID(*s)
	if !ok {
		d.fail("uuid_parsing", "Input should be a valid UUID, unable to parse it", *s, append(loc, name)...)
	}
	return id
}

// parseID takes a conversation id with or without dashes, in any case.
func parseID(s string) (string, bool) {
	h := strings.ToLower(strings.ReplaceAll(s, "-", ""))
	if !isHexID(h) || (len(s) != 32 && len(s) != 36) {
		return "", false
	}
	return h, true
}

// message is a SendMessage (api-contract.md A.5).
type message struct {
	Role    string  `json:"role"`
	Content []block `json:"content"`
	Run     bool    `json:"run"`
}

// block is one content block of a message.
type block struct {
	CachePrompt bool     `json:"cache_prompt"`
	Type        string   `json:"type"`
	Text        *string  `json:"text,omitempty"`
	ImageURLs   []string `json:"image_urls,omitempty"`
}

// message reads a message out of m.
func (d *reader) message(m map[string]any, loc ...string) message {
	out := message{
		Role:    d.enum(m, "role", "user", []string{"user", "system", "assistant", "tool"}, loc...),
		Run:     d.boolean(m, "run", false, loc...),
		Content: []block{},
	}
	if s, ok := m["content"].(string); ok {
		out.Content = append(out.Content, block{Type: "text", Text: &s})
		return out
	}
	for i, v := range d.list(m, "content", loc...) {
		at := append(slices.Clone(loc), "content", strconv.Itoa(i))
		b, ok := v.(map[string]any)
		if !ok {
			d.fail("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", nil, at...)
			continue
		}
		out.Content = append(out.Content, d.block(b, at...))
	}
	return out
}

func (d *reader) block(b map[string]any, at ...string) block {
	out := block{Type: d.enum(b, "type", "text", []string{"text", "image"}, at...), CachePrompt: d.boolean(b, "cache_prompt", false, at...)}
	if out.Type == "text" {
		if out.Text = d.str(b, "text", at...); out.Text == nil && b["text"] == nil {
			d.missing(append(at, "text")...)
		}
		return out
	}
	if b["image_urls"] == nil {
		d.missing(append(at, "image_urls")...)
	}
	for i, u := range d.list(b, "image_urls", at...) {
		s, ok := u.(string)
		if !ok {
			d.fail("string_type", "Input should be a valid string", u, append(slices.Clone(at), "image_urls", strconv.Itoa(i))...)
			continue
		}
		out.ImageURLs = append(out.ImageURLs, s)
	}
	return out
}

// tags reads the map of tags.
func (d *reader) tags(m map[string]any) map[string]string {
	out := map[string]string{}
	for k, v := range d.object(m, "tags") {
		s, ok := v.(string)
		switch {
		case !isTagKey(k):
			d.value("a tag's name is lower-case letters and digits", nil, "tags", k, "[key]")
		case !ok:
			d.fail("string_type", "Input should be a valid string", v, "tags", k)
		case len(s) > 256:
			d.value("a tag's value has at most 256 characters", nil, "tags", k)
		default:
			out[k] = s
		}
	}
	return out
}

func isTagKey(k string) bool {
	for _, r := range k {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return k != "" && len(k) <= 256
}

// secretNames checks the map of secrets and gives its names.
func (d *reader) secretNames(m map[string]any) []string {
	names := []string{}
	for name, v := range d.object(m, "secrets") {
		if _, plain := v.(string); plain {
			names = append(names, name)
			continue
		}
		o, ok := v.(map[string]any)
		if !ok {
			d.fail("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", nil, "secrets", name)
			continue
		}
		kind, _ := o["kind"].(string)
		if kind != "" && kind != "StaticSecret" && kind != "LookupSecret" {
			d.value("kind should be StaticSecret or LookupSecret", nil, "secrets", name, "kind")
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// workspace reads the required working place.
func (d *reader) workspace(m map[string]any) workspace {
	if m["workspace"] == nil {
		d.missing("workspace")
		return workspace{}
	}
	w := d.object(m, "workspace")
	if w == nil {
		return workspace{}
	}
	out := workspace{Kind: d.enum(w, "kind", "LocalWorkspace", []string{"LocalWorkspace"}, "workspace")}
	dir := d.str(w, "working_dir", "workspace")
	switch {
	case dir == nil && w["working_dir"] == nil:
		d.missing("workspace", "working_dir")
	case dir == nil:
	case !path.IsAbs(*dir) || strings.ContainsRune(*dir, 0):
		d.value("working_dir must be an absolute path", *dir, "workspace", "working_dir")
	default:
		out.WorkingDir = path.Clean(*dir)
	}
	return out
}

// redactURL drops the user info and the query of a URL, where credentials
// hide; a text that is no URL is dropped whole.
func redactURL(s *string) *string {
	if s == nil || *s == "" {
		return nil
	}
	u, err := url.Parse(*s)
	if err != nil {
		return nil
	}
	clean := fmt.Sprintf("%s://%s%s", u.Scheme, u.Host, u.Path)
	return &clean
}
