// Package eventcut makes events small enough to be kept.
package eventcut

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

const (
	// MaxEvent bounds an event that is kept, in bytes. Larger ones are kept with their large texts cut.
	MaxEvent = 6 << 20
	// longestText and shortestText bound what stays of a text of an event that is too large.
	longestText  = 1 << 20
	shortestText = 1 << 10
)

// Cut returns an event, which is valid JSON, in at most MaxEvent bytes: with its large texts cut and
// marked, and all else as it was. One that is of many small parts keeps its head alone.
func Cut(text json.RawMessage) json.RawMessage {
	if len(text) <= MaxEvent {
		return text
	}
	for most := longestText; most >= shortestText; most /= 4 {
		if short := shortened(text, most); len(short) <= MaxEvent {
			return short
		}
	}
	var head struct {
		ID        json.RawMessage `json:"id,omitempty"`
		Kind      json.RawMessage `json:"kind,omitempty"`
		Source    json.RawMessage `json:"source,omitempty"`
		Timestamp json.RawMessage `json:"timestamp,omitempty"`
		ParentID  json.RawMessage `json:"parent_id,omitempty"`
		Cut       string          `json:"cut"`
	}
	if json.Unmarshal(text, &head) != nil {
		return text
	}
	head.Cut = fmt.Sprintf("an event of %d bytes, more than can be kept", len(text))
	short, err := json.Marshal(head)
	if err != nil || len(short) > MaxEvent {
		return text
	}
	return short
}

// shortened returns JSON whose texts have at most so many bytes, and say so.
func shortened(text []byte, most int) []byte {
	out := make([]byte, 0, min(len(text), MaxEvent+longestText))
	for {
		begin := bytes.IndexByte(text, '"')
		if begin < 0 {
			return append(out, text...)
		}
		out = append(out, text[:begin+1]...)
		text = text[begin+1:]
		end := 0
		for end < len(text) && text[end] != '"' {
			if text[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end, len(text))
		if end <= most {
			out = append(out, text[:end]...)
		} else {
			kept := whole(text[:end], most)
			out = append(out, text[:kept]...)
			out = fmt.Appendf(out, `\n[cut: %d of %d bytes are kept]`, kept, end)
		}
		if text = text[end:]; len(text) == 0 {
			return out
		}
		out, text = append(out, '"'), text[1:]
	}
}

// whole is how much of a text in JSON can be kept without cutting a character: at most so many bytes.
func whole(text []byte, most int) (kept int) {
	for next := 0; ; kept = next {
		switch {
		case text[next] != '\\':
			_, size := utf8.DecodeRune(text[next:])
			next += size
		case text[next+1] != 'u':
			next += 2
		case text[next+2]|0x20 == 'd' && text[next+3]|0x20 >= '8' && next+12 <= len(text) && text[next+6] == '\\':
			next += 12 // both halves of a surrogate pair
		default:
			next += 6
		}
		if next > most {
			return kept
		}
	}
}
