//go:build !race

package llm

import (
	"bytes"
	"io"
	"testing"
	"time"

	"bivouac.dev/bivouac/deploy/local/ownprocess"
)

// repeated is an answer's body that sends the same chunk again and again.
type repeated []byte

func (r repeated) Read(p []byte) (int, error) { return copy(p, r), nil }

// TestBudget holds the allocations of a chunk of a model's answer.
func TestBudget(t *testing.T) {
	if !ownprocess.Enter(t, "GOGC=off") {
		return
	}
	chunk := func(events bool, text string) func() {
		// checked is far away: the grant is judged once a second, not with each chunk.
		m := &meter{body: io.NopCloser(repeated(text)), of: &request{operation: operation{chat: true}, began: time.Now()},
			events: events, checked: time.Now().Add(time.Hour)}
		p := make([]byte, 32<<10)
		return func() {
			if n, err := m.Read(p); err != nil || !bytes.Equal(p[:n], []byte(text)) {
				t.Fatalf("%d bytes, %v", n, err)
			}
			m.bytes = 0
			m.tail = m.tail[:0]
		}
	}
	const event = `data: {"id":"c","object":"chat.completion.chunk","model":"m",` +
		`"choices":[{"index":0,"delta":{"content":"some words"}}]}` + "\n\n"
	const usage = `data: {"id":"c","choices":[{"index":0,"delta":{}}],` +
		`"usage":{"prompt_tokens":100,"completion_tokens":200}}` + "\n\n"
	ownprocess.CheckBudget(t, []ownprocess.Step{
		{Name: "an event of a stream", Allocs: 0, Bytes: 0, Run: chunk(true, event)},
		{Name: "the event with the usage", Allocs: 13, Bytes: 608, Run: chunk(true, usage)},
		{Name: "a chunk of an answer in one piece", Allocs: 0, Bytes: 0, Run: chunk(false, event)},
	})
}
