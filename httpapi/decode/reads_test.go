package decode

import (
	"encoding/json"
	"testing"
)

// TestReads_RecordWhatReadersAsk: the readers of a recorded request see every member, and what they ask
// for is written down.
func TestReads_RecordWhatReadersAsk(t *testing.T) {
	t.Parallel()
	reads := &Reads{Key: "k", Picks: map[string]string{"kind": "b"}}
	p := &Problems{Reads: reads}
	o := Body(p, "", nil)
	o.Strict("name")
	o.MustText("name", 9)
	kind := o.Enum("kind", []string{"a", "b"})
	for _, item := range o.Elements("items", false) {
		item.Integer("n")
	}
	dict, _ := o.Dict("env")
	dict.TextMap(9, 7)
	q := Query{Problems: p}
	q.Integer("limit", 5, 0, 10)
	q.Required("id")
	switch {
	case *kind != "b":
		t.Errorf("the pick is %s", *kind)
	case p.Err() == nil || len(p.List) > 0:
		t.Errorf("the request goes on, with %v", p.List)
	}
	m := reads.Body.Members
	got, err := json.Marshal([]any{
		reads.Body.Strict, m["name"].Required, m["name"].NotNull, m["name"].MaxLength, m["kind"].Enum,
		m["items"].MaxItems, m["items"].Each.Members["n"].Type, m["env"].Each.MaxLength,
		reads.Parameters["limit"].Minimum, reads.Parameters["limit"].Maximum, reads.Parameters["id"].Required,
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := `[true,true,true,9,["a","b"],1000,"integer",7,1,10,true]`; string(got) != want {
		t.Errorf("recorded %s, want %s", got, want)
	}
}
