package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// maxArguments bounds the text of one call's arguments, in bytes.
const maxArguments = 16 << 20

// The risks that a model may state, and the one when it states none.
const (
	riskUnknown = "UNKNOWN"
	riskLow     = "LOW"
	riskMedium  = "MEDIUM"
	riskHigh    = "HIGH"
)

// common are the parameters that every tool has for the model. They are no part of the action.
func common() map[string]any {
	return map[string]any{
		"summary": map[string]any{
			"type":        "string",
			"description": "What this call does and why, in about ten words, for the user who watches.",
		},
		"security_risk": map[string]any{
			"type": "string",
			"enum": []string{riskUnknown, riskLow, riskMedium, riskHigh},
			"description": "Your own judgement of this call: LOW reads or changes the project only, " +
				"MEDIUM changes the sandbox or sends data, HIGH may destroy or disclose something.",
		},
	}
}

// WithCommon returns an object schema with the optional parameters that every tool has. A schema
// that has one of those names keeps its own.
func WithCommon(schema map[string]any) json.RawMessage {
	out := map[string]any{"type": "object"}
	maps.Copy(out, schema)
	properties := common()
	if own, ok := schema["properties"].(map[string]any); ok {
		maps.Copy(properties, own)
	}
	out["properties"] = properties
	b, err := json.Marshal(out)
	if err != nil {
		return json.RawMessage(`{"type":"object"}`) // a schema that was decoded from JSON encodes
	}
	return b
}

// Split decodes the arguments of a call and takes out the common ones, unless the tool has own ones
// of that name. What is null counts as absent.
func Split(arguments string, own ...string) (map[string]json.RawMessage, Call, error) {
	call := Call{SecurityRisk: riskUnknown}
	if len(arguments) > maxArguments {
		return nil, call, fmt.Errorf("the arguments have %d bytes; at most %d are allowed", len(arguments), maxArguments)
	}
	args := map[string]json.RawMessage{}
	if strings.TrimSpace(arguments) != "" {
		d := json.NewDecoder(strings.NewReader(arguments))
		if err := d.Decode(&args); err != nil {
			return nil, call, fmt.Errorf("the arguments are not a JSON object: %w", err)
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return nil, call, errors.New("the arguments are more than one JSON object; send one object")
		}
	}
	for name, v := range args {
		if string(v) == "null" {
			delete(args, name)
		}
	}
	take := func(name string) string {
		if slices.Contains(own, name) {
			return ""
		}
		var s string
		_ = json.Unmarshal(args[name], &s) // what is no text is dropped: it is for display only
		delete(args, name)
		return s
	}
	call.Summary = take("summary")
	if risk := strings.ToUpper(take("security_risk")); slices.Contains([]string{riskLow, riskMedium, riskHigh}, risk) {
		call.SecurityRisk = risk
	}
	return args, call, nil
}

// parse checks arguments by the schema of T and decodes them into action. kind is the action's.
func parse[T any](arguments, kind string, action *T) (Call, error) {
	args, call, err := Split(arguments)
	if err != nil {
		return call, err
	}
	s := SchemaOf[T]()
	var extra []string // models give arguments that there are not; they are left out
	for name := range args {
		if s.Properties[name] == nil {
			extra = append(extra, name)
			delete(args, name)
		}
	}
	slices.Sort(extra)
	for _, name := range extra {
		if decides(name) {
			return call, fmt.Errorf("there is no argument %s, and without it the call would do something else. "+
				"The arguments are: %s", name, strings.Join(s.PropertyOrder, ", "))
		}
	}
	call.Ignored = extra
	for _, name := range s.PropertyOrder {
		v, given := args[name]
		switch {
		case given:
			if args[name], err = check(name, s.Properties[name], v); err != nil {
				return call, err
			}
		case slices.Contains(s.Required, name) && len(extra) > 0:
			return call, fmt.Errorf("the argument %s is missing; it is required. There is no argument %s", name,
				strings.Join(extra, ", "))
		case slices.Contains(s.Required, name):
			return call, fmt.Errorf("the argument %s is missing; it is required", name)
		}
	}
	k, _ := json.Marshal(kind)
	args["kind"] = k
	all, err := json.Marshal(args)
	if err != nil {
		return call, err
	}
	d := json.NewDecoder(bytes.NewReader(all))
	if err := d.Decode(action); err != nil {
		return call, fmt.Errorf("the arguments can't be used: %w", err)
	}
	call.Action, err = json.Marshal(action)
	return call, err
}

// decides reports whether an argument that a tool does not have says where, as whom or whether a call
// is executed: without it the call would be another one.
func decides(name string) bool {
	switch strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name)) {
	case "cwd", "workdir", "workingdir", "workingdirectory", "directory", "dir", "chdir", "env", "environment",
		"user", "host", "dryrun":
		return true
	}
	return false
}

// check checks one argument. Models write a number or a list as text now and then; such a text is
// converted.
func check(name string, p *jsonschema.Schema, v json.RawMessage) (json.RawMessage, error) {
	var s string
	isText := json.Unmarshal(v, &s) == nil
	if p.Type == "string" {
		if !isText {
			return nil, fmt.Errorf("the argument %s must be a string, not %s", name, short(v))
		}
		if p.Enum != nil && !slices.Contains(p.Enum, any(s)) {
			return nil, fmt.Errorf("the argument %s is %q; it must be one of %s", name, s,
				strings.Join(texts(p.Enum), ", "))
		}
		return v, nil
	}
	if isText {
		v = json.RawMessage(strings.TrimSpace(s))
		if p.Type == "boolean" {
			v = json.RawMessage(strings.ToLower(string(v)))
		}
	}
	ok := false
	switch p.Type {
	case "boolean":
		ok = string(v) == "true" || string(v) == "false"
	case "integer":
		f, err := strconv.ParseFloat(string(v), 64)
		if ok = err == nil && f == float64(int64(f)); ok {
			v = json.RawMessage(strconv.FormatInt(int64(f), 10))
		}
	case "number":
		_, err := strconv.ParseFloat(string(v), 64)
		ok = err == nil && json.Valid(v)
	case "array":
		var list []json.RawMessage
		ok = json.Unmarshal(v, &list) == nil && list != nil
	}
	if !ok {
		return nil, fmt.Errorf("the argument %s must be of the type %s, not %s", name, p.Type, short(v))
	}
	return v, nil
}

func short(v json.RawMessage) string {
	if len(v) > 60 {
		return string(v[:60]) + "…"
	}
	return string(v)
}
