package httpapi

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/wire"
)

const (
	settingsPath  = "/api/settings"
	v0Path        = "/api/conversations"
	providersPath = "/api/add-git-providers"
)

// TestValidation_Table has at least one case for every row of the table in API.md, "Validation".
func TestValidation_Table(t *testing.T) {
	search := "/api/v1/sandboxes/search"
	for _, tt := range []struct {
		name, method, path, body, want string
	}{
		{
			"absent parameter",
			"GET",
			"/api/v1/sandboxes",
			"",
			`{"type":"missing","loc":["query","id"],"msg":"Field required","input":null}`,
		},
		{
			"absent parameter ids",
			"GET",
			"/api/v1/app-conversations/start-tasks",
			"",
			`{"type":"missing","loc":["query","ids"],"msg":"Field required","input":null}`,
		},
		{"absent body", "POST", settingsPath, "", `{"type":"missing","loc":["body"],"msg":"Field required","input":null}`},
		{
			"absent body of a start",
			"POST",
			"/api/v1/app-conversations",
			"",
			`{"type":"missing","loc":["body"],"msg":"Field required","input":null}`,
		},
		{"absent member", "POST", "/api/v1/app-conversations", `{"initial_message":{"content":[{"type":"text"}]}}`,
			`{"type":"missing","loc":["body","initial_message","content","0","text"],"msg":"Field required",` +
				`"input":{"type":"**********"}}`},
		{
			"limit 0",
			"GET",
			search + "?limit=0",
			"",
			`{"type":"greater_than","loc":["query","limit"],"msg":"Input should be greater than 0","input":"0","ctx":{"gt":0}}`,
		},
		{
			"limit 101",
			"GET",
			search + "?limit=101",
			"",
			`{"type":"less_than_equal","loc":["query","limit"],"msg":"Input should be less than or equal to 100",` +
				`"input":"101","ctx":{"le":100}}`,
		},
		{
			"limit is no integer",
			"GET",
			search + "?limit=x",
			"",
			`{"type":"int_parsing","loc":["query","limit"],"msg":"Input should be a valid integer, ` +
				`unable to parse string as an integer","input":"x"}`,
		},
		{
			"limit is empty",
			"GET",
			search + "?limit=",
			"",
			`{"type":"int_parsing","loc":["query","limit"],"msg":"Input should be a valid integer, ` +
				`unable to parse string as an integer","input":""}`,
		},
		{
			"text is no integer",
			"POST",
			settingsPath,
			`{"max_iterations":"x"}`,
			`{"type":"int_parsing","loc":["body","max_iterations"],"msg":"Input should be a valid integer, ` +
				`unable to parse string as an integer","input":"x"}`,
		},
		{
			"integer with fraction",
			"POST",
			settingsPath,
			`{"max_iterations":1.5}`,
			`{"type":"int_from_float","loc":["body","max_iterations"],"msg":"Input should be a valid integer, ` +
				`got a number with a fractional part","input":1.5}`,
		},
		{
			"integer too large",
			"POST",
			settingsPath,
			`{"max_iterations":99999999999999999999}`,
			`{"type":"int_parsing_size","loc":["body","max_iterations"],"msg":"Unable to parse input string as an integer, ` +
				`exceeded maximum size","input":99999999999999999999}`,
		},
		{
			"string",
			"POST",
			settingsPath,
			`{"language":5}`,
			`{"type":"string_type","loc":["body","language"],"msg":"Input should be a valid string","input":5}`,
		},
		{
			"string not from boolean",
			"POST",
			settingsPath,
			`{"language":true}`,
			`{"type":"string_type","loc":["body","language"],"msg":"Input should be a valid string","input":true}`,
		},
		{
			"integer",
			"POST",
			settingsPath,
			`{"max_iterations":[]}`,
			`{"type":"int_type","loc":["body","max_iterations"],"msg":"Input should be a valid integer","input":[]}`,
		},
		{
			"boolean",
			"POST",
			settingsPath,
			`{"confirmation_mode":[]}`,
			`{"type":"bool_type","loc":["body","confirmation_mode"],"msg":"Input should be a valid boolean","input":[]}`,
		},
		{
			"boolean not null",
			"POST",
			settingsPath,
			`{"enable_default_condenser":null}`,
			`{"type":"bool_type","loc":["body","enable_default_condenser"],` +
				`"msg":"Input should be a valid boolean","input":null}`,
		},
		{
			"boolean text",
			"POST",
			settingsPath,
			`{"confirmation_mode":"maybe"}`,
			`{"type":"bool_parsing","loc":["body","confirmation_mode"],"msg":"Input should be a valid boolean, ` +
				`unable to interpret input","input":"maybe"}`,
		},
		{
			"boolean number",
			"POST",
			settingsPath,
			`{"confirmation_mode":2}`,
			`{"type":"bool_parsing","loc":["body","confirmation_mode"],"msg":"Input should be a valid boolean, ` +
				`unable to interpret input","input":2}`,
		},
		{
			"list",
			"POST",
			v0Path,
			`{"image_urls":"x"}`,
			`{"type":"list_type","loc":["body","image_urls"],"msg":"Input should be a valid list","input":"x"}`,
		},
		{
			"dictionary",
			"POST",
			providersPath,
			`{"provider_tokens":[]}`,
			`{"type":"dict_type","loc":["body","provider_tokens"],"msg":"Input should be a valid dictionary","input":[]}`,
		},
		{
			"object",
			"POST",
			settingsPath,
			`[]`,
			`{"type":"model_attributes_type","loc":["body"],` +
				`"msg":"Input should be a valid dictionary or object to extract fields from","input":[]}`,
		},
		{
			"enum",
			"POST",
			"/api/v1/app-conversations",
			`{"agent_type":"x"}`,
			`{"type":"enum","loc":["body","agent_type"],"msg":"Input should be 'default' or 'plan'","input":"x",` +
				`"ctx":{"expected":"'default' or 'plan'"}}`,
		},
		{
			"enum key",
			"POST",
			providersPath,
			`{"provider_tokens":{"foo":{}}}`,
			`{"type":"enum","loc":["body","provider_tokens","foo","[key]"],"msg":"Input should be 'github', 'gitlab', ` +
				`'bitbucket', 'bitbucket_data_center', 'forgejo', 'azure_devops' or 'enterprise_sso'","input":"foo",` +
				`"ctx":{"expected":"'github', 'gitlab', 'bitbucket', 'bitbucket_data_center', 'forgejo', ` +
				`'azure_devops' or 'enterprise_sso'"}}`,
		},
		{
			"uuid in the body",
			"POST",
			"/api/v1/app-conversations",
			`{"conversation_id":"x"}`,
			`{"type":"uuid_parsing","loc":["body","conversation_id"],"msg":"Input should be a valid UUID, ` +
				`unable to parse string as a UUID","input":"x","ctx":{"error":"not a UUID"}}`,
		},
		{
			"uuid in the query",
			"GET",
			"/api/v1/app-conversations/start-tasks?ids=x",
			"",
			`{"type":"uuid_parsing","loc":["query","ids","0"],"msg":"Input should be a valid UUID, ` +
				`unable to parse string as a UUID","input":"x","ctx":{"error":"not a UUID"}}`,
		},
		{
			"datetime",
			"GET",
			"/api/v1/app-conversations/search?created_at__gte=x",
			"",
			`{"type":"datetime_from_date_parsing","loc":["query","created_at__gte"],` +
				`"msg":"Input should be a valid datetime or date, input is too short","input":"x",` +
				`"ctx":{"error":"input is too short"}}`,
		},
		{
			"extra member",
			"POST",
			v0Path,
			`{"foo":1}`,
			`{"type":"extra_forbidden","loc":["body","foo"],"msg":"Extra inputs are not permitted","input":"**********"}`,
		},
		{
			"extra MCP member",
			"POST",
			settingsPath,
			`{"mcp_config":{"foo":1}}`,
			`{"type":"extra_forbidden","loc":["body","mcp_config","foo"],` +
				`"msg":"Extra inputs are not permitted","input":"**********"}`,
		},
		{"extra text member", "POST", "/api/v1/app-conversations",
			`{"initial_message":{"content":[{"type":"text","text":"","x":true}]}}`,
			`{"type":"extra_forbidden","loc":["body","initial_message","content","0","x"],` +
				`"msg":"Extra inputs are not permitted","input":true}`},
		{
			"malformed JSON",
			"POST",
			settingsPath,
			`{"a":}`,
			`{"type":"json_invalid","loc":["body","5"],"msg":"JSON decode error","input":{},"ctx":{"error":"Expecting value"}}`,
		},
		{
			"custom rule",
			"POST",
			settingsPath,
			`{"condenser_max_size":19}`,
			`{"type":"value_error","loc":["body","condenser_max_size"],"msg":"Value error, ` +
				`condenser_max_size must be at least 20","input":19,"ctx":{"error":"condenser_max_size must be at least 20"}}`,
		},
		{
			"number",
			"POST",
			settingsPath,
			`{"max_budget_per_task":{}}`,
			`{"type":"float_type","loc":["body","max_budget_per_task"],"msg":"Input should be a valid number","input":{}}`,
		},
		{
			"infinite number",
			"POST",
			settingsPath,
			`{"max_budget_per_task":"inf"}`,
			`{"type":"finite_number","loc":["body","max_budget_per_task"],` +
				`"msg":"Input should be a finite number","input":"inf"}`,
		},
		{
			"reserved secret name",
			"POST",
			"/api/v1/app-conversations",
			`{"secrets":{"LLM_X":"s"}}`,
			`{"type":"value_error","loc":["body","secrets","LLM_X","[key]"],"msg":"Value error, ` +
				`the secret name 'LLM_X' is reserved","input":"LLM_X","ctx":{"error":"the secret name 'LLM_X' is reserved"}}`,
		},
		{
			"secrets of the wrong kind",
			"POST",
			"/api/v1/app-conversations",
			`{"secrets":"s"}`,
			`{"type":"dict_type","loc":["body","secrets"],"msg":"Input should be a valid dictionary","input":"**********"}`,
		},
		{
			"unknown processor",
			"POST",
			"/api/v1/app-conversations",
			`{"processors":[{"kind":"Evil"}]}`,
			`{"type":"value_error","loc":["body","processors","0","kind"],"msg":"Value error, ` +
				`nothing would call this processor: leave it out and read the conversation's events; ` +
				`SetTitleCallbackProcessor alone is served, and every start has it","input":"**********",` +
				`"ctx":{"error":"nothing would call this processor: leave it out and read the conversation's events; ` +
				`SetTitleCallbackProcessor alone is served, and every start has it"}}`,
		},
		{
			"secret of the wrong kind",
			"POST",
			settingsPath,
			`{"llm_api_key":5}`,
			`{"type":"string_type","loc":["body","llm_api_key"],"msg":"Input should be a valid string","input":"**********"}`,
		},
		{
			"MCP name",
			"POST",
			settingsPath,
			`{"mcp_config":{"stdio_servers":[{"name":"a b","command":"x"}]}}`,
			`{"type":"value_error","loc":["body","mcp_config","stdio_servers","0","name"],"msg":"Value error, ` +
				`Server name can only contain letters, numbers, hyphens, and underscores","input":"**********",` +
				`"ctx":{"error":"Server name can only contain letters, numbers, hyphens, and underscores"}}`,
		},
		{
			"MCP URL",
			"POST",
			settingsPath,
			`{"mcp_config":{"sse_servers":["ftp://x"]}}`,
			`{"type":"value_error","loc":["body","mcp_config","sse_servers","0","url"],"msg":"Value error, ` +
				`URL scheme must be http, https, ws, or wss","input":"**********",` +
				`"ctx":{"error":"URL scheme must be http, https, ws, or wss"}}`,
		},
		{
			"conversation_id is null",
			"POST",
			v0Path,
			`{"conversation_id":null}`,
			`{"type":"string_type","loc":["body","conversation_id"],"msg":"Input should be a valid string","input":null}`,
		},
		{
			"sort order",
			"GET",
			"/api/v1/app-conversations/start-tasks/search?sort_order=X",
			"",
			`{"type":"enum","loc":["query","sort_order"],"msg":"Input should be 'CREATED_AT', 'CREATED_AT_DESC', ` +
				`'UPDATED_AT' or 'UPDATED_AT_DESC'","input":"X","ctx":{"expected":"'CREATED_AT', 'CREATED_AT_DESC', ` +
				`'UPDATED_AT' or 'UPDATED_AT_DESC'"}}`,
		},
		{"parameter too long", "GET",
			"/api/v1/app-conversations/search?sandbox_id__eq=" + url.QueryEscape(strings.Repeat("é", 257)), "",
			`{"type":"string_too_long","loc":["query","sandbox_id__eq"],` +
				`"msg":"String should have at most 256 characters","input":"` + strings.Repeat("é",
				128) + `…","ctx":{"max_length":256}}`},
		{"name too long", "POST", "/api/v1/app-conversations", `{"secrets":{"` + strings.Repeat("é", 257) + `":"s"}}`,
			`{"type":"string_too_long","loc":["body","secrets","` + strings.Repeat("é",
				32) + `…","[key]"],"msg":"String should have at most 256 characters","input":"**********",` +
				`"ctx":{"max_length":256}}`},
		{
			"boolean parameter",
			"GET",
			"/api/v1/app-conversations/search?include_sub_conversations=x",
			"",
			`{"type":"bool_parsing","loc":["query","include_sub_conversations"],"msg":"Input should be a valid boolean, ` +
				`unable to interpret input","input":"x"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(t)
			before := h.cluster.count()
			h.do(h.alice, tt.method, tt.path, tt.body).want(t, 422).is(t, `{"detail":[`+tt.want+`]}`)
			if h.cluster.count() != before || h.secrets.written() != 0 {
				t.Fatal("a refused request changed something")
			}
		})
	}
}

func TestValidation_ContentType(t *testing.T) {
	h := newHarness(t)
	for _, ct := range []string{
		"text/plain",
		"application/x-www-form-urlencoded",
		"multipart/form-data; boundary=x",
		"nonsense;;",
	} {
		got := h.do(h.alice, "POST", settingsPath, `{"llm_api_key":"canary"}`, "Content-Type", ct).problems(t)
		if len(got) != 1 || got[0].Type != "model_attributes_type" || got[0].Input != decode.Masked {
			t.Errorf("%s: %v", ct, got)
		}
	}
	for _, ct := range []string{
		"",
		"application/json",
		"application/json; charset=utf-8",
		"application/merge-patch+json",
		"APPLICATION/JSON",
	} {
		h.do(h.alice, "POST", settingsPath, `{}`, "Content-Type", ct).want(t, 200)
	}
}

func TestValidation_AllErrorsTogether(t *testing.T) {
	h := newHarness(t)
	got := h.do(h.alice, "POST", "/api/v1/app-conversations",
		`{"conversation_id":"x","initial_message":{"role":"king","content":[{"type":"text"},{"type":"image"},`+
			`{"type":"sound"},7]},"pr_number":["a",1],"secrets":{"A":1,"OH_B":"x"}}`,
		"Idempotency-Key", "has space").problems(t)
	want := []string{
		"header.Idempotency-Key value_error", "body.initial_message.role enum",
		"body.initial_message.content.3 model_attributes_type",
		"body.initial_message.content.0.text missing", "body.initial_message.content.1.image_urls missing",
		"body.initial_message.content.2.type enum", "body.pr_number.0 int_parsing", "body.conversation_id uuid_parsing",
		"body.secrets.A string_type", "body.secrets.OH_B.[key] value_error",
	}
	if diff := cmp.Diff(want, summary(got)); diff != "" {
		t.Fatal(diff)
	}
}

func TestValidation_Coercions(t *testing.T) {
	h := newHarness(t)
	for sent, want := range map[string]any{
		`"5"`: 5.0, `5.0`: 5.0, `true`: 1.0, `false`: 0.0, `" 7 "`: 7.0, `"5.00"`: 5.0, `-3`: -3.0, `1e2`: 100.0, `null`: nil,
	} {
		h.do(h.alice, "POST", settingsPath, `{"max_iterations":`+sent+`}`).want(t, 200)
		var got map[string]any
		h.do(h.alice, "GET", settingsPath, "").json(t, &got)
		if got["max_iterations"] != want {
			t.Errorf("%s became %v", sent, got["max_iterations"])
		}
	}
	for sent, want := range map[string]bool{
		`"true"`: true, `"TRUE"`: true, `"1"`: true, `"yes"`: true, `"Y"`: true, `"on"`: true, `"t"`: true, `1`: true,
		`1.0`:     true,
		`"false"`: false, `"0"`: false, `"no"`: false, `"n"`: false, `"OFF"`: false, `"f"`: false, `0`: false,
	} {
		h.do(h.alice, "POST", settingsPath, `{"confirmation_mode":`+sent+`}`).want(t, 200)
		var got map[string]any
		h.do(h.alice, "GET", settingsPath, "").json(t, &got)
		if got["confirmation_mode"] != want {
			t.Errorf("%s became %v", sent, got["confirmation_mode"])
		}
	}
	h.do(h.alice, "POST", settingsPath, `{"max_budget_per_task":4}`).want(t, 200)
	h.do(h.alice, "POST", settingsPath, `{"max_budget_per_task":"4.5"}`).want(t, 200)
	var got map[string]any
	h.do(h.alice, "GET", settingsPath, "").json(t, &got)
	if got["max_budget_per_task"] != 4.5 {
		t.Errorf("budget %v", got["max_budget_per_task"])
	}
}

func TestValidation_UnknownMembersAndParametersAreIgnored(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", settingsPath+"?foo=%zz&bar",
		`{"foo":1,"llm_api_key_set":true,"provider_tokens_set":{}}`).want(t, 200)
	h.do(h.alice, "POST", "/api/v1/app-conversations?x=1", `{"foo":[]}`).want(t, 200)
	h.do(h.alice, "GET", "/api/v1/sandboxes/search?sort_order=X&limit=5&limit=6", "").want(t, 200)
}

func TestValidation_Bounds(t *testing.T) {
	h := newHarness(t)
	for name, body := range map[string]string{
		"string_too_long": `{"language":"` + strings.Repeat("x", fsm.MaxLine+1) + `"}`,
		"too_long": `{"mcp_config":{"sse_servers":[` + strings.TrimRight(strings.Repeat(`"http://x",`,
			decode.MaxListItems+1), ",") + `]}}`,
		"json_invalid": strings.Repeat("[", decode.MaxDepth+1) + strings.Repeat("]", decode.MaxDepth+1),
	} {
		got := h.do(h.alice, "POST", settingsPath, body).problems(t)
		if len(got) != 1 || got[0].Type != name {
			t.Errorf("%s: %v", name, summary(got))
		}
	}
	many := `{"x":[` + strings.TrimRight(strings.Repeat("1,", decode.MaxValues+1), ",") + `]}`
	if got := h.do(h.alice, "POST", settingsPath, many).problems(t); got[0].Type != "json_invalid" {
		t.Errorf("many values: %v", summary(got))
	}
	var names []string
	for i := range decode.MaxMapItems + 1 {
		names = append(names, `"k`+itoa(i)+`":"v"`)
	}
	got := h.do(h.alice, "POST", "/api/v1/app-conversations", `{"secrets":{`+strings.Join(names, ",")+`}}`).problems(t)
	if got[0].Type != "too_long" {
		t.Errorf("many secrets: %v", summary(got))
	}
}

func TestValidation_BodyIsNotUTF8(t *testing.T) {
	h := newHarness(t)
	if got := h.do(h.alice, "POST", settingsPath, "{\"language\":\"\xff\"}").problems(t); got[0].Type != "json_invalid" {
		t.Errorf("%v", summary(got))
	}
	for _, body := range []string{" ", "{", `{"a":1}{}`, `{"a":1} x`, `nul`, `{"a":NaN}`, `{'a':1}`, `{"a":1,}`} {
		if got := h.do(h.alice, "POST", settingsPath, body).problems(t); len(got) != 1 || got[0].Type != "json_invalid" {
			t.Errorf("%q: %v", body, summary(got))
		}
	}
}

func TestToTime(t *testing.T) {
	for in, want := range map[string]string{
		"2026-08-22T09:15:30.123456Z": `"2026-08-22T09:15:30.123456Z"`, "2026-08-22T09:15:30": `"2026-08-22T09:15:30Z"`,
		"2026-08-22 09:15:30": `"2026-08-22T09:15:30Z"`, "2026-08-22T11:15:30+02:00": `"2026-08-22T09:15:30Z"`,
		"2026-08-22T11:15:30.5+0200": `"2026-08-22T09:15:30.500000Z"`, "2026-08-22": `"2026-08-22T00:00:00Z"`,
		"2026-08-22T09:15": `"2026-08-22T09:15:00Z"`, "2026-08-22t09:15:30z": `"2026-08-22T09:15:30Z"`,
		"1787390130": `"2026-08-22T09:15:30Z"`, "1787390130000": `"2026-08-22T09:15:30Z"`,
	} {
		got, f := decode.ToTime(in)
		b, _ := json.Marshal(wire.At(got))
		if f != nil || string(b) != want {
			t.Errorf("%s became %s", in, b)
		}
	}
	for _, in := range []string{"", "x", "2026-13-01", "2026-02-30T00:00:00Z", "yesterday at noon"} {
		if _, f := decode.ToTime(in); f == nil {
			t.Errorf("%q is a time", in)
		}
	}
}
