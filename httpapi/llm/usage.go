package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// tokens are what an answer used. Cached and Written are parts of Input.
type tokens preset.Tokens

// most returns the larger of each count: in streams later counts include earlier ones.
func (t tokens) most(o tokens) tokens {
	return tokens{
		Input:   max(t.Input, o.Input),
		Output:  max(t.Output, o.Output),
		Cached:  max(t.Cached, o.Cached),
		Written: max(t.Written, o.Written),
	}
}

// count is a number of tokens in an answer. Endpoints are believed up to maxCount: sums of such
// numbers, and their costs, are in range wherever they are added.
type count int64

const maxCount = 1 << 40

// UnmarshalJSON implements json.Unmarshaler. What is no number is 0.
func (c *count) UnmarshalJSON(text []byte) error {
	n, err := strconv.ParseFloat(string(text), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		n = 0
	}
	*c = count(min(max(n, 0), maxCount))
	return nil
}

// usage is the usage object of the OpenAI and Anthropic APIs.
type usage struct {
	PromptTokens     count   `json:"prompt_tokens"`
	CompletionTokens count   `json:"completion_tokens"`
	InputTokens      count   `json:"input_tokens"`
	OutputTokens     count   `json:"output_tokens"`
	CacheRead        count   `json:"cache_read_input_tokens"`
	CacheCreation    count   `json:"cache_creation_input_tokens"`
	PromptDetails    details `json:"prompt_tokens_details"`
	InputDetails     details `json:"input_tokens_details"`
}

type details struct {
	Cached count `json:"cached_tokens"`
}

// tokens converts the usage. Anthropic counts cached input beside the rest, the others within.
func (u *usage) tokens() tokens {
	if u == nil {
		return tokens{}
	}
	return tokens{
		Input:   int64(u.PromptTokens + u.InputTokens + u.CacheRead + u.CacheCreation),
		Output:  int64(u.CompletionTokens + u.OutputTokens),
		Cached:  int64(u.PromptDetails.Cached + u.InputDetails.Cached + u.CacheRead),
		Written: int64(u.CacheCreation),
	}
}

// geminiUsage is Gemini's.
type geminiUsage struct {
	Prompt     count `json:"promptTokenCount"`
	Candidates count `json:"candidatesTokenCount"`
	Thoughts   count `json:"thoughtsTokenCount"`
	Cached     count `json:"cachedContentTokenCount"`
}

func (u *geminiUsage) tokens() tokens {
	if u == nil {
		return tokens{}
	}
	return tokens{Input: int64(u.Prompt), Output: int64(u.Candidates + u.Thoughts), Cached: int64(u.Cached)}
}

// answer is what the gateway reads of an answer, or of one event of a stream.
type answer struct {
	Usage   *usage            `json:"usage"`
	Choices []json.RawMessage `json:"choices"`
	// Message is in Anthropic's message_start, Response in the last event of the responses API.
	Message       *struct{ Usage *usage } `json:"message"`
	Response      *struct{ Usage *usage } `json:"response"`
	UsageMetadata *geminiUsage            `json:"usageMetadata"`
}

// readAnswer reads the usage in a JSON text; found is false if it has none. only reports whether a
// chunk of chat completions has the usage and nothing else.
func readAnswer(text []byte) (used tokens, only, found bool) {
	if !bytes.Contains(text, []byte(`"usage`)) {
		return tokens{}, false, false
	}
	var list []json.RawMessage
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '[' && json.Unmarshal(trimmed, &list) == nil {
		for _, one := range list { // a stream of Gemini's without SSE
			u, _, has := readAnswer(one)
			used, found = used.most(u), found || has
		}
		return used, false, found
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil && a.Usage == nil && a.UsageMetadata == nil && a.Message == nil &&
		a.Response == nil {
		return tokens{}, false, false
	}
	if a.Message != nil {
		used = used.most(a.Message.Usage.tokens())
	}
	if a.Response != nil {
		used = used.most(a.Response.Usage.tokens())
	}
	used = used.most(a.Usage.tokens()).most(a.UsageMetadata.tokens())
	return used, a.Usage != nil && len(a.Choices) == 0, used != tokens{}
}

// maxTries bounds the members that readEnd looks at.
const maxTries = 8

// readEnd reads the usage in the end of a JSON text: the last member of that name with an object. In
// a string the name's quotes would be escaped.
func readEnd(text []byte) (used tokens, found bool) {
	for range maxTries {
		at := bytes.LastIndex(text, []byte(`"usage`))
		if at < 0 {
			break
		}
		d := json.NewDecoder(bytes.NewReader(text[at:]))
		name, _ := d.Token()
		rest := bytes.TrimLeft(text[at+int(d.InputOffset()):], " \t\r\n")
		if value, is := bytes.CutPrefix(rest, []byte(":")); is {
			var u *usage
			var m *geminiUsage
			var err error
			switch d = json.NewDecoder(bytes.NewReader(value)); name {
			case "usage":
				err = d.Decode(&u)
			case "usageMetadata":
				err = d.Decode(&m)
			}
			if used = u.tokens().most(m.tokens()); err == nil && used != (tokens{}) {
				return used, true
			}
		}
		text = text[:at]
	}
	return tokens{}, false
}

// askUsage makes a streamed chat completion report its usage. added is false if it does anyway.
func askUsage(body []byte, options json.RawMessage) (out []byte, added bool) {
	const member = `"stream_options":{"include_usage":true},`
	if len(options) == 0 || string(options) == "null" && !bytes.Contains(body, []byte(`"stream_options"`)) {
		at := bytes.IndexByte(body, '{') + 1
		return bytes.Join([][]byte{body[:at], []byte(member), body[at:]}, nil), true
	}
	var has map[string]json.RawMessage
	if string(options) != "null" && json.Unmarshal(options, &has) != nil || string(has["include_usage"]) == "true" {
		return body, false
	}
	var whole map[string]json.RawMessage
	if json.Unmarshal(body, &whole) != nil {
		return body, false
	}
	if has == nil {
		has = map[string]json.RawMessage{}
	}
	has["include_usage"] = json.RawMessage("true")
	options, err := json.Marshal(has)
	if err != nil {
		return body, false
	}
	whole["stream_options"] = options
	if out, err = json.Marshal(whole); err != nil {
		return body, false
	}
	return out, true
}
