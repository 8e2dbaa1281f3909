package decode

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
)

// TestDocument_IsWhatEncodingJSONReads: the reader of one pass gives what encoding/json gives, and
// refuses what readers understand differently.
func TestDocument_IsWhatEncodingJSONReads(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{}`, ` [ ] `, `null`, `true`, `"x"`, `1`, `{"a":{"b":[null,true,false,"",[],{}]},"c":""}`,
		`[0,-0,1.0,1e400,123456789012345678901234567890,-1.5E-3]`, `{"":"\u00e4\n\ud83d\ude00\/","A":1,"a":2}`,
		`{"\u0061":1}`, "{\"x\":\"<&>\u2028\"}\r\n", strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth),
	} {
		var read document
		if err := jsonv2.Unmarshal([]byte(body), &read); err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		var want any
		d := json.NewDecoder(bytes.NewReader([]byte(body)))
		d.UseNumber()
		if err := d.Decode(&want); err != nil || !reflect.DeepEqual(want, read.value) {
			t.Errorf("%s is read as %#v, want %#v, %v", body, read.value, want, err)
		}
	}
	for _, body := range []string{
		``, `{`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `{} {}`, `[1,]`, `{"a"}`, `01`, `nul`, "\"\n\"",
	} {
		var read document
		if jsonv2.Unmarshal([]byte(body), &read) == nil {
			t.Errorf("%s is read as %#v", body, read.value)
		}
		var p Problems
		if v, ok := decodeJSON(&p, []byte(body)); ok || len(p.List) != 1 {
			t.Errorf("%s is read as %#v with the problems %v", body, v, p.List)
		}
	}
}
