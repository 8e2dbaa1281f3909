package native

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// examined is a script that answers the three questions as a capable model does.
func examined(r modeltest.Request) (modeltest.Answer, bool) {
	last := string(r.Body)
	switch {
	case strings.Contains(last, "image_url"):
		return modeltest.Text("Red."), true
	case len(r.Tools) > 0:
		return modeltest.Calls(
			modeltest.Tool("note", map[string]string{"text": "a"}), modeltest.Tool("note", map[string]string{"text": "b"}),
		), true
	}
	return modeltest.Text("one two three four five six seven eight nine ten"), true
}

// TestExamine says what a server takes, and what was repaired for it.
func TestExamine(t *testing.T) {
	t.Parallel()
	good := modeltest.New(t, &modeltest.Script{Func: examined, Models: []string{"scripted"}, Window: 32768})
	x := Examine(t.Context(), engine.LLM{Model: "openai/scripted", BaseURL: good.BaseURL() + "/chat/completions"},
		http.DefaultTransport)
	if !x.Reachable || x.Window != 32768 || x.WindowFrom != "server" || !x.Streaming || x.Tools != "native" ||
		!x.Parallel || x.Vision != "yes" || len(x.Repaired) != 0 || x.Endpoint != good.BaseURL() || x.PromptTokens == 0 {
		t.Errorf("a capable server: %+v", x)
	}
	poor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Stream   bool
			Tools    []any
			Messages json.RawMessage
		}
		if r.Method == http.MethodGet || json.NewDecoder(r.Body).Decode(&body) != nil {
			http.NotFound(w, r)
			return
		}
		refused := ""
		switch {
		case body.Stream:
			refused = "Streaming is not supported by this model"
		case body.Tools != nil:
			refused = `\"auto\" tool choice requires --enable-auto-tool-choice`
		case strings.Contains(string(body.Messages), "image_url"):
			refused = "This model does not support image input"
		}
		if refused != "" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":{"message":"%s"}}`, refused)
			return
		}
		text := "It is fine."
		if strings.Contains(string(body.Messages), "function=") {
			text = `<function=note>\n<parameter=text>a</parameter>\n</function>`
		}
		fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}]}`, text)
	}))
	defer poor.Close()
	x = Examine(t.Context(), engine.LLM{Model: "openai/poor", BaseURL: poor.URL + "/v1"}, http.DefaultTransport)
	if !x.Reachable || x.Window != 0 || x.Streaming || x.Tools != "written" || x.Parallel || x.Vision != "no" {
		t.Errorf("a poor server: %+v", x)
	}
	for _, want := range []string{
		"asked for whole answers, not streams", "tools are in the prompt, and calls are read in texts",
		"sent without pictures",
	} {
		if !slices.Contains(x.Repaired, want) {
			t.Errorf("%q is not said of %v", want, x.Repaired)
		}
	}
	poor.Close()
	x = Examine(t.Context(), engine.LLM{Model: "openai/poor", BaseURL: poor.URL + "/v1"}, http.DefaultTransport)
	if x.Reachable || !strings.Contains(x.Error, "can't be reached") {
		t.Errorf("no server: %+v", x)
	}
}

// TestExamine_NamesEveryRepair: each member of a dialect that a refusal may set is said.
func TestExamine_NamesEveryRepair(t *testing.T) {
	t.Parallel()
	silent := []string{"apiChanged", "most"} // said with api and the limits of output
	said := map[string]string{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[dialect]()) {
		if slices.Contains(silent, f.Name) {
			continue
		}
		var d dialect
		member := reflect.NewAt(f.Type, unsafe.Add(unsafe.Pointer(&d), f.Offset)).Elem()
		switch f.Type.Kind() {
		case reflect.Bool:
			member.SetBool(true)
		case reflect.String:
			member.SetString("x")
		default:
			t.Errorf("%s is of type %s: the test must know how to set it", f.Name, f.Type)
		}
		texts := dialect{}.repaired(d)
		if len(texts) != 1 || said[texts[0]] != "" || len(d.repaired(d)) != 0 {
			t.Errorf("%s is said as %q", f.Name, texts)
			continue
		}
		said[texts[0]] = f.Name
	}
}
