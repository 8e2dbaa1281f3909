package tools

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of what is kept of output.
const (
	maxOutput    = 30_000        // characters in one observation
	keptEnd      = 4 * maxOutput // bytes kept of the beginning, and of the end
	maxLine      = 4 << 10       // bytes of a line that a carriage return may overwrite
	maxMarker    = 8 << 10       // bytes of a marker
	maxSequence  = 4 << 10       // bytes of one escape sequence
	markerOpen   = "\x1b]"       // an operating system command, which no terminal shows
	markerClose  = '\a'          // its end
	replacedRune = "\uFFFD"

	// In the middle of what was cut.
	cutNote = "characters left out; send the output to a file and read parts of it"
)

// prompt is what the shell says when a command has ended.
type prompt struct {
	// turn is the number of the command; 0 is the shell's start.
	turn int
	// exit is the command's exit code.
	exit int
	// background is the last background process, -1 without one.
	background int
	python     string
}

// screen turns the bytes of a terminal into text: without escape sequences and overwritten lines,
// with secrets masked, and only so much of it as an observation shows. It finds the shell's markers.
type screen struct {
	marker []byte

	mu     sync.Mutex
	held   []byte // the beginning of a marker, maybe
	esc    escape
	escLen int
	line   []byte // the line that is being written
	cr     bool   // a carriage return came last: what comes next overwrites the line
	mask   *masker
	kept   kept
	last   prompt // the latest marker
	// changed gets a value after each change.
	changed chan struct{}
}

// escape is where in an escape sequence the output is.
type escape int

const (
	noEscape  escape = iota
	afterESC         // ESC
	inCSI            // ESC [
	inOSC            // ESC ] and other strings
	oscESC           // ESC within a string
	inCharset        // ESC ( and others with one more byte
)

func newScreen(nonce string, secrets map[string]string) *screen {
	return &screen{
		marker:  []byte(markerOpen + nonce + ";"),
		mask:    newMasker(secrets),
		last:    prompt{turn: -1},
		changed: make(chan struct{}, 1),
	}
}

// Write takes output. It never fails.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.scan(p)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return len(p), nil
}

// scan finds the markers in output. The caller holds mu.
func (s *screen) scan(p []byte) {
	b := p
	if len(s.held) > 0 {
		b = append(s.held, p...)
		s.held = nil
	}
	for {
		i := bytes.Index(b, s.marker)
		if i < 0 {
			n := partial(b, s.marker)
			s.text(b[:len(b)-n])
			s.held = append(s.held, b[len(b)-n:]...)
			return
		}
		rest := b[i+len(s.marker):]
		end := bytes.IndexByte(rest, markerClose)
		if end < 0 && len(rest) < maxMarker {
			s.text(b[:i])
			s.held = append(s.held, b[i:]...)
			return
		}
		s.text(b[:i])
		if end < 0 {
			b = rest // no marker of ours is that long
			continue
		}
		s.esc = noEscape
		s.ended(string(rest[:end]))
		b = rest[end+1:]
	}
}

// partial returns the length of the longest end of b with which marker begins.
func partial(b, marker []byte) int {
	for n := min(len(b), len(marker)-1); n > 0; n-- {
		if bytes.HasPrefix(marker, b[len(b)-n:]) {
			return n
		}
	}
	return 0
}

// ended takes a marker's text.
func (s *screen) ended(text string) {
	parts := strings.SplitN(text, ";", 4)
	for len(parts) < 4 {
		parts = append(parts, "")
	}
	number := func(text string) int {
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
		return -1
	}
	s.last = prompt{turn: number(parts[0]), exit: number(parts[1]), background: number(parts[2]), python: parts[3]}
}

// text takes output without markers.
func (s *screen) text(b []byte) {
	for len(b) > 0 {
		if s.esc != noEscape {
			s.sequence(b[0])
			b = b[1:]
			continue
		}
		n := bytes.IndexFunc(b, isControl)
		if n < 0 {
			n = len(b)
		}
		if n > 0 {
			s.put(b[:n])
			b = b[n:]
			continue
		}
		s.control(b[0])
		b = b[1:]
	}
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// control takes one control character.
func (s *screen) control(c byte) {
	switch c {
	case 0x1b:
		s.esc, s.escLen = afterESC, 0
	case '\n':
		s.cr = false
		s.line = append(s.line, '\n')
		s.emit()
	case '\r':
		s.cr = true
	case '\b':
		if _, n := utf8.DecodeLastRune(s.line); n > 0 {
			s.line = s.line[:len(s.line)-n]
		}
	}
}

// sequence takes one byte of an escape sequence, which is not shown.
func (s *screen) sequence(c byte) {
	s.escLen++
	if s.escLen > maxSequence {
		s.esc = noEscape
		return
	}
	switch s.esc {
	case noEscape:
	case afterESC:
		switch {
		case c == '[':
			s.esc = inCSI
		case c == ']' || c == 'P' || c == '_' || c == '^' || c == 'X':
			s.esc = inOSC
		case c >= 0x20 && c <= 0x2f:
			s.esc = inCharset
		default:
			s.esc = noEscape
		}
	case inCSI:
		if c >= 0x40 && c <= 0x7e || c < ' ' {
			s.esc = noEscape
		}
	case inOSC:
		switch c {
		case markerClose:
			s.esc = noEscape
		case 0x1b:
			s.esc = oscESC
		}
	case oscESC, inCharset:
		s.esc = noEscape
	}
}

// put adds characters to the line.
func (s *screen) put(b []byte) {
	if s.cr {
		s.line, s.cr = s.line[:0], false
	}
	s.line = append(s.line, b...)
	if len(s.line) > maxLine {
		s.emit()
	}
}

// emit hands the line on.
func (s *screen) emit() {
	s.kept.add(s.mask.feed(s.line, false))
	s.line = s.line[:0]
}

// secrets sets the values to mask from now on.
func (s *screen) secrets(values map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mask.set(values)
}

// prompted returns the latest marker.
func (s *screen) prompted() prompt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// take returns the output since the last call. Unless ended is set, the command goes on: what may
// be the beginning of a secret is left for the next call.
func (s *screen) take(ended bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept.add(s.mask.feed(s.line, ended))
	s.line = s.line[:0]
	text := s.kept.text()
	s.kept = kept{}
	return strings.TrimRight(text, "\n\t ")
}

// dropBlank drops the output since the last take if it is empty lines only, as a shell prints them
// for an interrupt.
func (s *screen) dropBlank() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(bytes.TrimSpace(s.kept.head)) == 0 && len(s.kept.tail) == 0 && len(s.line) == 0 {
		s.kept = kept{}
	}
}

// kept holds the beginning and the end of a text.
type kept struct {
	head, tail []byte
	dropped    int
}

func (k *kept) add(b []byte) {
	if n := min(keptEnd-len(k.head), len(b)); n > 0 {
		k.head = append(k.head, b[:n]...)
		b = b[n:]
	}
	k.tail = append(k.tail, b...)
	if over := len(k.tail) - keptEnd; over > keptEnd {
		k.dropped += over
		k.tail = append([]byte(nil), k.tail[over:]...)
	}
}

// text returns at most maxOutput characters, with a note where some are missing.
func (k *kept) text() string {
	all := strings.ToValidUTF8(string(k.head)+string(k.tail), replacedRune)
	if k.dropped == 0 {
		return elide(all, maxOutput)
	}
	// The cut is somewhere in all, which is far longer than what is shown of it.
	return elideMore(all, maxOutput, k.dropped)
}

// elide cuts the middle out of a text of more than limit characters.
func elide(text string, limit int) string {
	if len(text) <= limit || utf8.RuneCountInString(text) <= limit {
		return text
	}
	return elideMore(text, limit, 0)
}

func elideMore(text string, limit, more int) string {
	runes := []rune(text)
	note := "\n[… " + strconv.Itoa(len(runes)-limit+more) + " " + cutNote + " …]\n"
	keep := limit - utf8.RuneCountInString(note)
	head := keep / 2
	return string(runes[:head]) + note + string(runes[len(runes)-(keep-head):])
}
