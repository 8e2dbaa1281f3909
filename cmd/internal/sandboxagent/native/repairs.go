package native

import (
	"regexp"

	openai "github.com/sashabaranov/go-openai"
)

// repair is what a server's text says of a request, and what is changed then.
type repair struct {
	says   *regexp.Regexp
	change func(d *dialect, r *openai.ChatCompletionRequest)
	long   bool // also of a history that is too long
}

func says(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?is)` + pattern) }

// set is a change of one member.
func set(member func(*dialect) *bool) func(*dialect, *openai.ChatCompletionRequest) {
	return func(d *dialect, _ *openai.ChatCompletionRequest) { *member(d) = true }
}

// repairs are tried in order. The sources of the texts are in ops/agents/modelserver.
var repairs = []repair{ //nolint:gochecknoglobals // compiled once, read-only
	{
		says:   says(`with stream|to stream this model|not support streaming|streaming is not|'stream' does not support`),
		change: func(d *dialect, r *openai.ChatCompletionRequest) { d.noStream = d.noStream || r.Stream },
	},
	{
		says: says(`does not support (tools|function|parameters: \[[^\]]*tools)|enable-auto-tool-choice|` +
			`tools param requires|unsupported param: tools|support tool use|` +
			`(tools|tool call(s|ing)|function calling) (is|are) not (supported|enabled)`),
		change: func(d *dialect, r *openai.ChatCompletionRequest) { d.written = d.written || len(r.Tools) > 0 },
	},
	{says: says(`stream_options|include_usage`), change: set(func(d *dialect) *bool { return &d.noStreamOptions })},
	{says: says(`max_(completion_)?tokens.*(at most|too large|above maximum)|maximum tokens you requested|` +
		`is too large: \d+`), change: noMax, long: true},
	{says: says(`max_tokens: \d+ (>|\\u003e) \d+`), change: set(func(d *dialect) *bool { return &d.smallMax })},
	{
		says:   says(`max_tokens.{0,60}(required|missing)|(required|missing).{0,60}max_tokens`),
		change: set(func(d *dialect) *bool { return &d.someMax }),
	},
	{says: says(`max_(completion_)?tokens|max_new_tokens`), change: otherMax},
	{
		says:   says(`entity too large|payload too large|request too large|body.{0,20}too large`),
		change: noPictures, long: true,
	},
	{says: says(`tool_choice`), change: func(d *dialect, r *openai.ChatCompletionRequest) {
		d.noToolChoice = d.noToolChoice || r.ToolChoice != nil
	}},
	{says: says(`cache_control`), change: set(func(d *dialect) *bool { return &d.noCache })},
	{says: says(`thinking\.(type|budget)|adaptive thinking|output_config|budget_tokens`), change: otherThinking},
	{
		says: says(`encrypted.content.{0,40}not (supported|permitted|allowed)|` +
			`\binclude\b.{0,60}(unsupported|unknown|not )`),
		change: set(func(d *dialect) *bool { return &d.noEncrypted }),
	},
	{
		says:   says(`reasoning\.summary|reasoning summar`),
		change: set(func(d *dialect) *bool { return &d.noSummary }),
	},
	{
		says: says(`signature|thinking. blocks?|cannot contain .thinking|redacted_thinking|encrypted content|` +
			`invalid_encrypted_content|type 'reasoning'|'reasoning' item`),
		change: noKept,
	},
	{says: says(`temperature|top_p`), change: set(func(d *dialect) *bool { return &d.noSampling })},
	{
		says: says(`reasoning_effort|reasoning\.effort|does not support thinking|` +
			`thinking.{0,30}(is enabled|not supported|not permitted|unsupported)`),
		change: set(func(d *dialect) *bool { return &d.noEffort }),
	},
	{
		says:   says(`reasoning_content.*(passed back|required|missing|must be)|missing.*reasoning_content`),
		change: set(func(d *dialect) *bool { return &d.thoughts }),
	},
	{
		says: says(`reasoning_content[^.]*(unsupported|not (permitted|supported|allowed)|unexpected|unknown|extra)|` +
			`(unsupported|extra|unexpected|unknown|forbidden).*reasoning_content`),
		change: set(func(d *dialect) *bool { return &d.noThoughts }),
	},
	{
		says: says(`function_declarations|additionalProperties|\$schema|json.?schema|input_schema|` +
			`invalid schema|unrecognized schema|schema.{0,60}(unsupported|not supported)`),
		change: set(func(d *dialect) *bool { return &d.plainSchemas }),
	},
	{
		says:   says(`image|vision|multi-?modal|mmproj|expected a string|valid string|must be a string`),
		change: noPictures,
	},
	{
		says:   says(`tool.?call.?id was|tool_use\.id|tool_calls?\S*\.id\b|tool_call_id.*(length|pattern)`),
		change: set(func(d *dialect) *bool { return &d.shortIDs }),
	},
	{says: says(`only user and assistant`), change: func(d *dialect, r *openai.ChatCompletionRequest) {
		d.noSystem, d.alternate = true, true
		d.told, d.written = d.told || called(r), d.written || len(r.Tools) > 0
	}},
	{
		says: says(`system role|support 'system'|'system' (role|message)|system messages? (is|are) not|` +
			`developer instruction`),
		change: func(d *dialect, _ *openai.ChatCompletionRequest) { d.noSystem, d.alternate = true, true },
	},
	{
		says: says(`alternate|alternating|unexpected role|expected last role|incorrect role|message_order|` +
			`end with a user|prefill|last message`),
		change: alternate,
	},
	{
		says:   says(`non-?empty|either content or|content[^"{}]*(is required|missing|must not be empty|be null)`),
		change: set(func(d *dialect) *bool { return &d.fullContent }),
	},
}

// otherMax sends the limit of output under its other name, and none where that is refused too.
func otherMax(d *dialect, r *openai.ChatCompletionRequest) {
	if limited(r) {
		d.noMax, d.otherMax = d.noMax || d.otherMax, true
	}
}

// otherThinking asks for thoughts in the other way, and for none where that is refused too.
func otherThinking(d *dialect, _ *openai.ChatCompletionRequest) {
	d.noEffort, d.thoughtBudget = d.noEffort || d.thoughtBudget, true
}

// noKept sends the thoughts no more that were sent now. Later ones are sent: a signature may be of another
// model's, or of a history that was condensed since.
func noKept(d *dialect, r *openai.ChatCompletionRequest) {
	for _, m := range r.Messages {
		for _, c := range m.ToolCalls {
			d.noThoughtsTo = c.ID
		}
	}
}

func noMax(d *dialect, r *openai.ChatCompletionRequest) { d.noMax = d.noMax || limited(r) }

func limited(r *openai.ChatCompletionRequest) bool {
	return r.MaxTokens > 0 || r.MaxCompletionTokens > 0 //nolint:staticcheck // what servers other than OpenAI's know
}

func noPictures(d *dialect, r *openai.ChatCompletionRequest) {
	for _, m := range r.Messages {
		d.noPictures = d.noPictures || len(m.MultiContent) > 0
	}
}

// alternate makes the order strict, and where it is refused still, shows the past calls as texts.
func alternate(d *dialect, r *openai.ChatCompletionRequest) {
	d.told, d.alternate = d.told || d.alternate && called(r), true
}

// called reports whether the messages have a call.
func called(r *openai.ChatCompletionRequest) bool {
	for _, m := range r.Messages {
		if len(m.ToolCalls) > 0 {
			return true
		}
	}
	return false
}
