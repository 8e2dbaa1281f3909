package native

import (
	"bytes"
	"strings"
)

// display sends the parts of an answer to who watches. Where an answer broke off and is asked for
// again, it sends what goes on from what is shown; what is not part of the next answer is withdrawn.
// A nil display shows nothing.
type display struct {
	send func(text, reasoning string)
	// withdraw takes back the text that is shown.
	withdraw        func()
	text, reasoning track
	sieve           sieve
}

// again begins another try.
func (d *display) again() {
	if d != nil {
		d.text.restart()
		d.reasoning.restart()
		d.sieve = sieve{}
	}
}

// add shows a part.
func (d *display) add(text, reasoning string) {
	if d == nil {
		return
	}
	text, thought := d.sieve.pass(text)
	d.show(text, reasoning+thought)
}

// end shows what was held back, and withdraws what is shown beyond the answer.
func (d *display) end() {
	if d == nil {
		return
	}
	d.show(d.sieve.rest())
	if t := &d.text; t.at < len(t.shown) {
		t.shown = t.shown[:t.at]
		d.withdraw()
		if len(t.shown) > 0 {
			d.send(string(t.shown), "")
		}
	}
}

func (d *display) show(text, reasoning string) {
	text, withdrawn := d.text.more(text)
	if withdrawn {
		d.withdraw()
	}
	// Thoughts can't be withdrawn: those of another answer are not shown.
	reasoning, other := d.reasoning.more(reasoning)
	if other {
		reasoning = ""
	}
	if text != "" || reasoning != "" {
		d.send(text, reasoning)
	}
}

// fail withdraws what is shown of an answer that does not come.
func (d *display) fail() {
	if d != nil && len(d.text.shown) > 0 {
		d.withdraw()
	}
}

// track is a text that is shown already, and how far this try has come in it.
type track struct {
	shown []byte
	at    int
}

func (t *track) restart() { t.at = 0 }

// more is what of the next part is not shown yet, and whether this try says something else than what
// is shown; then all of it is new.
func (t *track) more(part string) (text string, differs bool) {
	known := t.shown[t.at:]
	n := min(len(known), len(part))
	if !bytes.Equal(known[:n], []byte(part[:n])) {
		t.shown = append(t.shown[:t.at:t.at], part...)
		t.at = len(t.shown)
		return string(t.shown), true
	}
	t.at += len(part)
	t.shown = append(t.shown, part[n:]...)
	return part[n:], false
}

// sieve keeps thoughts and calls that are written into a text out of what is shown of it.
type sieve struct {
	pending  string
	begun    bool // there was a text
	thinking bool
	calls    bool
}

const thinkEnd = "</think>"

// marks are what a call in a text begins with.
func marks() []string { return []string{"<tool_call", "<function=", "<invoke name=", "[TOOL_CALLS]"} }

// pass takes a part of a text and returns what of it is a text and what a thought.
func (s *sieve) pass(part string) (text, thought string) {
	if s.calls {
		return "", ""
	}
	s.pending += part
	for !s.calls {
		if s.thinking {
			inner, rest, ended := strings.Cut(s.pending, thinkEnd)
			if !ended {
				inner, rest = splitHeld(s.pending, []string{thinkEnd})
			}
			thought += inner
			s.pending = rest
			if !ended {
				return text, thought
			}
			s.thinking, s.begun = false, true
			continue
		}
		if !s.begun {
			blank := strings.TrimLeft(s.pending, " \t\r\n")
			if inner, is := strings.CutPrefix(blank, "<think>"); is {
				s.pending, s.thinking = inner, true
				continue
			}
			if strings.HasPrefix("<think>", blank) {
				return text, thought // it may be one yet
			}
			s.begun = true
		}
		for _, m := range marks() {
			if before, _, is := strings.Cut(s.pending, m); is {
				s.pending, s.calls = before, true
			}
		}
		if s.calls {
			break
		}
		shown, held := splitHeld(s.pending, marks())
		s.pending = held
		return text + shown, thought
	}
	text += s.pending
	s.pending = ""
	return text, thought
}

// rest is what is held back at the end of an answer.
func (s *sieve) rest() (text, thought string) {
	held := s.pending
	s.pending = ""
	if s.thinking {
		return "", held
	}
	return held, ""
}

// splitHeld separates the end of a text that may become one of the marks.
func splitHeld(text string, marks []string) (shown, held string) {
	for n := min(len(text), 16); n > 0; n-- {
		for _, m := range marks {
			if len(m) > n && strings.HasPrefix(m, text[len(text)-n:]) {
				return text[:len(text)-n], text[len(text)-n:]
			}
		}
	}
	return text, ""
}
