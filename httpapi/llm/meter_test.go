package llm

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// pieces is an answer that comes in pieces of random sizes.
type pieces struct {
	text []byte
	rng  *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.text) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(len(p.text), 1+p.rng.IntN(5000))])
	p.text = p.text[n:]
	return n, nil
}

func (p *pieces) Close() error { return nil }

// metered is a meter over a body, of a request that needs no gateway within its first second.
func metered(body io.ReadCloser, events bool, room int64) *meter {
	q := &request{
		grant:     &grant{row: &fsm.Sandbox{UserID: "ada"}},
		gateway:   &Gateway{answers: newShares(room, room)},
		operation: operation{chat: true},
	}
	q.addedUsage, q.began, q.counted = true, time.Now(), true
	return &meter{
		body:    body,
		of:      q,
		res:     &http.Response{StatusCode: http.StatusOK},
		events:  events,
		checked: time.Now().Add(time.Hour),
	}
}

// What a meter passes on is what came, but for the event that only the gateway asked for, whatever
// the pieces, the sizes of the events and the room.
func TestMeter_PassesWhatCame(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var came, want bytes.Buffer
		for i := range 1 + rng.IntN(40) {
			size := rng.IntN(200)
			if rng.IntN(8) == 0 {
				size = rng.IntN(200 << 10)
			}
			end := []string{"\n\n", "\r\n\r\n"}[rng.IntN(2)]
			event := fmt.Sprintf("data: {\"choices\":[%d],\"x\":%q}%s", i, strings.Repeat("y", size), end)
			came.WriteString(event)
			want.WriteString(event)
		}
		came.WriteString("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n")
		for range rng.IntN(3) {
			came.WriteString("data: [DONE]\n\n")
			want.WriteString("data: [DONE]\n\n")
		}
		if rng.IntN(2) == 0 {
			came.WriteString("data: cut")
			want.WriteString("data: cut")
		}
		room := []int64{0, 20 << 10, 1 << 20}[rng.IntN(3)]
		m := metered(&pieces{came.Bytes(), rng}, true, room)
		got, err := io.ReadAll(m)
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("seed %d: %d bytes of %d, %v", seed, len(got), want.Len(), err)
		}
		if m.used.Input != 9 || m.used.Output != 4 {
			t.Fatalf("seed %d: used %+v", seed, m.used)
		}
		if m.held > room || cap(m.buf)+cap(m.tail) > 2*maxKept {
			t.Fatalf("seed %d: it keeps %d and %d, with room for %d", seed, cap(m.buf), cap(m.tail), room)
		}
		if err := m.Close(); err != nil || m.of.gateway.answers.used != 0 {
			t.Fatalf("seed %d: %d bytes of room are not given back, %v", seed, m.of.gateway.answers.used, err)
		}
	}
}

// endlessEvents is a stream of equal events, one a read.
type endlessEvents struct{ event []byte }

func (e endlessEvents) Read(b []byte) (int, error) { return copy(b, e.event), nil }
func (e endlessEvents) Close() error               { return nil }

func TestMeter_AChunkAllocatesNothing(t *testing.T) {
	for _, events := range []bool{true, false} {
		m := metered(endlessEvents{[]byte("data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n")}, events, 1<<20)
		m.of.key, m.of.secret = "sk-12345678", []byte("sk-12345678")
		p := make([]byte, 32<<10)
		for range 4000 { // the buffers have their size
			_, _ = m.Read(p)
		}
		if n := testing.AllocsPerRun(1000, func() { _, _ = m.Read(p) }); n != 0 {
			t.Errorf("events=%t: a chunk allocates %g times", events, n)
		}
	}
}

func TestReadEnd(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]tokens{
		`..."x"}],"usage":{"prompt_tokens":3,"completion_tokens":2},"user":null}`: {
			Input:  3,
			Output: 2,
		},
		`...,"usage" : {"input_tokens":3,"output_tokens":2}}`: {
			Input:  3,
			Output: 2,
		},
		`...,"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2},"modelVersion":"x"}]`: {
			Input:  3,
			Output: 2,
		},
		`...\"usage\":{\"prompt_tokens\":99}","usage":{"prompt_tokens":3,"completion_tokens":2}}`: {
			Input:  3,
			Output: 2,
		},
		`..."usage":{"prompt_tokens":3,"completion_tokens":2},"tool_usage":{},"usage_notes":"none"}`: {
			Input:  3,
			Output: 2,
		},
		`..."usage":{"prompt_tokens":3,"completion_tokens":2},"usage":null}`: {
			Input:  3,
			Output: 2,
		},
		`..."usage":{"prompt_tokens":9223372036854775807,"completion_tokens":-4},"x":[1e999,"\u0000"]}`: {Input: maxCount},
		`..."usage":{"prompt_tok`: {},
		`"usage"`:                 {},
		``:                        {},
	} {
		if got, found := readEnd([]byte(text)); got != want || found != (want != tokens{}) {
			t.Errorf("%s: %+v, %t", text, got, found)
		}
	}
}

func TestMask(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"sk-12345678": "bad key ***********, ***********", "x": "bad key x, x", "1234567": "bad key 1234567, 1234567",
		"********": "bad key ********, ********", "": "bad key , ",
	} {
		q := &request{key: key, secret: []byte(key)}
		text := []byte("bad key " + key + ", " + key)
		if q.mask(text); string(text) != want {
			t.Errorf("%q: %s", key, text)
		}
	}
}
