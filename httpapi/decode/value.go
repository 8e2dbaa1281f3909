package decode

import (
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// document is a JSON value that all readers understand alike, read in one pass into what
// encoding/json makes of it. The caller bounds the depth.
type document struct{ value any }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (v *document) UnmarshalJSONFrom(d *jsontext.Decoder) (err error) {
	v.value, err = readValue(d)
	return err
}

func readValue(d *jsontext.Decoder) (any, error) {
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch t.Kind() {
	case '"':
		return t.String(), nil
	case '0':
		return json.Number(t.String()), nil
	case 't', 'f':
		return t.Bool(), nil
	case '{':
		return readMembers(d)
	case '[':
		return readElements(d)
	}
	return nil, nil // null
}

// readMembers reads an object behind its brace.
func readMembers(d *jsontext.Decoder) (any, error) {
	members := map[string]any{}
	for {
		t, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		if t.Kind() == '}' {
			return members, nil
		}
		name := t.String()
		if members[name], err = readValue(d); err != nil {
			return nil, err
		}
	}
}

// readElements reads a list behind its bracket.
func readElements(d *jsontext.Decoder) (any, error) {
	list := []any{}
	for d.PeekKind() != ']' {
		v, err := readValue(d)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.ReadToken()
	return list, err
}
