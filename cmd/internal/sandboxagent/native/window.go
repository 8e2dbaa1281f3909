package native

import (
	"regexp"
	"strconv"
	"sync"

	openai "github.com/sashabaranov/go-openai"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	bytesPerToken = 4 // an estimate, until a server has counted
	// leastGrowth is how much longer a request must be to tell that it was cut.
	leastGrowth = 4096
	// assumedOutput are the tokens that are left free for an answer, where the window is large enough.
	assumedOutput = 8192
	// leastWindow is the smallest window that a server is found out to have, in tokens.
	leastWindow = 1024
)

// window is a model's context: how much it takes, and how much the last request was.
type window struct {
	mu sync.Mutex
	// limit is in tokens; 0 is unknown. The model's profile says it, else a refusal. output are the
	// tokens of it that an answer may need.
	limit, output int
	// bytes and tokens are those of the last request with tools.
	bytes, tokens int
	// cuts is the number of tokens above which the server leaves out parts and says nothing; 0 is unknown.
	// It takes three counts to tell, of which same were like the one before. own is the limit without it.
	cuts, same, own int
}

// namedWindow finds the window in a server's refusal of a history that is too long.
var namedWindow = regexp.MustCompile( //nolint:gochecknoglobals // compiled once, read-only
	`(?i)(?:maximum context length(?: is| of)?|context window (?:is|of)|n_ctx"?:|` +
		`maximum prompt length is|max_model_len\D{0,3}|` +
		`\d+ tokens (?:>|\\u003e)|context limit: \d+ \+ \d+ (?:>|\\u003e))\s*(\d{3,8})`)

// refused learns the window from a refusal, where the settings do not say it.
func (w *window) refused(text string) {
	m := namedWindow.FindStringSubmatch(text)
	if m == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, err := strconv.Atoi(m[1]); err == nil && w.limit == 0 {
		w.limit = n
	}
}

// counted keeps what a server counted for a request. It returns the limit if it was found now that the
// server cuts requests: much longer ones have as many tokens as the one before, and far fewer than they
// would have. A higher count takes that back.
func (w *window) counted(p prompt, tokens int) (cuts int) {
	if tokens <= 0 || len(p.tools) == 0 {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	bytes := bytesOf(p.messages)
	switch same := tokens > w.tokens-w.tokens/100 && tokens < w.tokens+w.tokens/100; {
	case w.cuts > 0:
		if tokens > w.cuts+w.cuts/100 {
			w.cuts, w.same, w.limit = 0, 0, w.own
		}
	case !same || tokens < leastWindow:
		w.same = 0
	case bytes > w.bytes+leastGrowth && tokens < bytes/6:
		w.same++
	}
	if w.same == 2 && w.cuts == 0 {
		w.cuts, w.own, cuts = tokens, w.limit, tokens
		if w.limit == 0 || tokens < w.limit {
			w.limit = tokens
		}
	}
	w.bytes, w.tokens = bytes, tokens
	return cuts
}

// know sets the window and the longest answer that the model is known to have; 0 is unknown.
func (w *window) know(limit, output int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.output = output; limit > 0 && w.cuts == 0 {
		w.limit = limit
	}
}

// room is how much a request may have: the window without a part for the answer. The caller holds
// the mutex.
func (w *window) room() int {
	output := assumedOutput
	if w.output > 0 {
		output = min(w.output, assumedOutput)
	}
	return w.limit - min(output, w.limit/4)
}

// size is the window in tokens, 0 for an unknown one.
func (w *window) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limit
}

// exceeds reports whether a view is more than a part of what the model takes, by the last count and
// an estimate of what came since.
func (w *window) exceeds(shown []event.Event, part float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.limit <= 0 {
		return false
	}
	n := bytesOf(messages(shown, false))
	switch {
	case w.tokens == 0 || w.cuts > 0:
		n /= bytesPerToken
	case n >= w.bytes:
		n = w.tokens + (n-w.bytes)/bytesPerToken
	default:
		n = int(int64(w.tokens) * int64(n) / int64(w.bytes))
	}
	return float64(n) > part*float64(w.room())
}

// bytesOf is the size of the texts of messages.
func bytesOf(list []openai.ChatCompletionMessage) int {
	n := 0
	for _, m := range list {
		n += len(m.Content)
		for _, p := range m.MultiContent {
			n += len(p.Text)
		}
		for _, c := range m.ToolCalls {
			n += len(c.Function.Name) + len(c.Function.Arguments)
		}
	}
	return n
}
