package event

import "bytes"

// Any is a value of any type, as it was given; nil is null.
type Any []byte

// MarshalJSON returns the value.
func (a Any) MarshalJSON() ([]byte, error) {
	if len(a) == 0 {
		return []byte("null"), nil
	}
	return a, nil
}

// UnmarshalJSON keeps a copy of the value.
func (a *Any) UnmarshalJSON(b []byte) error {
	*a = nil
	if string(b) != "null" {
		*a = bytes.Clone(b)
	}
	return nil
}

// Frame returns an event as a socket carries it: without the members that are null, at any depth
// but inside a value of any type. e is valid JSON without spaces, as json.Marshal writes it. It is
// copied and not decoded, since every subscriber is sent every event.
func Frame(e []byte) []byte {
	if !bytes.Contains(e, []byte(":null")) {
		return e
	}
	f := framer{in: e, out: make([]byte, 0, len(e))}
	f.value()
	return f.out
}

// framer copies JSON from in to out.
type framer struct {
	in, out []byte
	// at is how much of in is read.
	at int
}

func (f *framer) value() {
	switch f.in[f.at] {
	case '{':
		f.object()
	case '[':
		f.array()
	default:
		f.verbatim()
	}
}

// verbatim copies a value as it is.
func (f *framer) verbatim() {
	end := valueEnd(f.in, f.at)
	f.out = append(f.out, f.in[f.at:end]...)
	f.at = end
}

func (f *framer) object() {
	f.out = append(f.out, '{')
	f.at++
	for first := true; f.in[f.at] != '}'; {
		if f.in[f.at] == ',' {
			f.at++
		}
		name := f.in[f.at:valueEnd(f.in, f.at)]
		f.at += len(name) + len(":")
		if f.in[f.at] == 'n' {
			f.at += len("null")
			continue
		}
		if !first {
			f.out = append(f.out, ',')
		}
		first = false
		f.out = append(append(f.out, name...), ':')
		if holdsAny(name) {
			f.verbatim()
		} else {
			f.value()
		}
	}
	f.out = append(f.out, '}')
	f.at++
}

func (f *framer) array() {
	f.out = append(f.out, '[')
	f.at++
	for f.in[f.at] != ']' {
		if f.in[f.at] == ',' {
			f.out = append(f.out, ',')
			f.at++
		}
		f.value()
	}
	f.out = append(f.out, ']')
	f.at++
}

// holdsAny reports whether a member's value may have any type: name is with its quotes. content is
// so in an ACPToolCall; elsewhere it has no members that are null. data is an MCP tool's arguments.
func holdsAny(name []byte) bool {
	switch string(name) {
	case `"value"`, `"raw_input"`, `"raw_output"`, `"content"`, `"hook_input"`, `"data"`:
		return true
	}
	return false
}

// valueEnd is where the value ends that begins at i.
func valueEnd(b []byte, i int) int {
	for depth := 0; ; {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			i++
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':':
			i++
		default: // a number or a literal
			for i < len(b) && bytes.IndexByte([]byte(",]}"), b[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}
