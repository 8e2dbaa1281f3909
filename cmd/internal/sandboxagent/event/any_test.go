package event

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzFrame compares frames with what decoding, removing and encoding makes.
func FuzzFrame(f *testing.F) {
	for _, text := range []string{
		`{}`, `[]`, `null`, `{"a":null}`, `{"a":null,"b":1}`, `{"b":1,"a":null}`, `{"a":[null,{"b":null}],"c":{"d":null}}`,
		`{"value":{"a":null},"raw_input":null,"x":"\":null\\"}`, `{"action":{"data":{"a":null},"timeout":null},"n":-1.5e3}`,
		`{"a":"{\"b\":null}","c":null,"d":[[],{},[{}]]}`, `{"nullable":"null","null":null,"a":true}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var compact bytes.Buffer
		if json.Compact(&compact, raw) != nil || hasTwice(raw) || bytes.Contains(raw, []byte(`\u`)) {
			return
		}
		var want, got any
		if json.Unmarshal(raw, &want) != nil {
			return
		}
		frame := Frame(compact.Bytes())
		if err := json.Unmarshal(frame, &got); err != nil {
			t.Fatalf("%q became %q: %v", raw, frame, err)
		}
		if want = withoutNulls(want); !reflect.DeepEqual(got, want) {
			t.Errorf("%q became %q, want %v", raw, frame, want)
		}
	})
}

// hasTwice reports whether an object has a member twice, of which decoding keeps the last.
func hasTwice(raw []byte) bool {
	var seen []map[string]bool
	d := json.NewDecoder(bytes.NewReader(raw))
	key := []bool{}
	for {
		token, err := d.Token()
		if err != nil {
			return false
		}
		n := len(seen) - 1
		switch v := token.(type) {
		case json.Delim:
			switch v {
			case '{':
				seen, key = append(seen, map[string]bool{}), append(key, true)
				continue
			case '[':
				seen, key = append(seen, nil), append(key, false)
				continue
			}
			seen, key = seen[:n], key[:n]
			n--
		case string:
			if n >= 0 && key[n] {
				if seen[n][v] {
					return true
				}
				seen[n][v], key[n] = true, false
				continue
			}
		}
		if n >= 0 && seen[n] != nil {
			key[n] = true
		}
	}
}

func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, one := range v {
			switch {
			case one == nil:
			case holdsAny([]byte(`"` + name + `"`)):
				out[name] = one
			default:
				out[name] = withoutNulls(one)
			}
		}
		return out
	case []any:
		out := []any{}
		for _, one := range v {
			out = append(out, withoutNulls(one))
		}
		return out
	}
	return v
}
