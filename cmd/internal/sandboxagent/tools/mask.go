package tools

import (
	"slices"
	"strings"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// hidden replaces the value of a secret.
const hidden = "<secret-hidden>"

// minSecret is the length of the shortest value that is masked, in bytes. A shorter one would mask
// parts of every text.
const minSecret = 3

// Mask replaces the values of secrets in a text. Values of one or two bytes are left.
func Mask(secrets map[string]string, text string) string {
	m := newMasker(secrets)
	return string(m.feed([]byte(text), true))
}

// masker masks values in a stream. It keeps back what may be the beginning of a value, so that a
// value is found wherever the stream is cut.
type masker struct {
	// values are longest first.
	values []string
	first  [256]bool
	held   []byte
}

func newMasker(secrets map[string]string) *masker {
	m := &masker{}
	m.set(secrets)
	return m
}

// set replaces the values. What is held back stays.
func (m *masker) set(secrets map[string]string) {
	m.values, m.first = nil, [256]bool{}
	add := func(v string) {
		if len(v) >= minSecret && !slices.Contains(m.values, v) {
			m.values = append(m.values, v)
			m.first[v[0]] = true
		}
	}
	for _, v := range secrets {
		for _, text := range event.Hidden(v) {
			add(text)
		}
	}
	slices.SortFunc(m.values, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
}

// feed returns the masked text of what was held back and b. With last, nothing is held back.
func (m *masker) feed(b []byte, last bool) []byte {
	if len(m.values) == 0 && len(m.held) == 0 {
		return b
	}
	b = append(m.held, b...)
	m.held = nil
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if !m.first[b[i]] {
			out = append(out, b[i])
			i++
			continue
		}
		n, partial := m.match(b[i:])
		switch {
		case partial && !last:
			m.held = append([]byte(nil), b[i:]...)
			return out
		case n > 0:
			out = append(out, hidden...)
			i += n
		default:
			out = append(out, b[i])
			i++
		}
	}
	return out
}

// match returns the length of the longest value that b begins with, and whether b may be the
// beginning of a longer one.
func (m *masker) match(b []byte) (n int, partial bool) {
	for _, v := range m.values {
		if len(v) > len(b) {
			partial = partial || strings.HasPrefix(v, string(b))
		} else if string(b[:len(v)]) == v {
			return len(v), partial
		}
	}
	return 0, partial
}
