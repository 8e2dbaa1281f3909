package acp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	// maxString is the most bytes of one string that an agent's line keeps. Events keep fewer.
	maxString = 256 << 10
	// maxLine is below the SDK's limit of 10 MiB, above which its read loop ends without a reason.
	maxLine = 9 << 20
)

var errLine = fmt.Errorf("the agent sent a line above %d MiB that has no long strings to shorten", maxLine>>20)

// lineReader is what the SDK reads of an agent. It shortens long strings in the JSON, so that a
// tool's output of any size is no end of the connection, drops lines that are no JSON, and hands
// session updates to a function: the SDK closes the connection when 1024 of them wait, and takes
// an unknown one for a message of the user.
type lineReader struct {
	r       *bufio.Reader
	update  func(params json.RawMessage)
	garbage func(line []byte)
	out     []byte
}

func newLineReader(r io.Reader, update func(json.RawMessage), garbage func([]byte)) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), update: update, garbage: garbage}
}

// Read implements io.Reader. It fails with errLine at a line that stays too long.
func (l *lineReader) Read(p []byte) (int, error) {
	for len(l.out) == 0 {
		line, err := l.line()
		if err != nil {
			return 0, err
		}
		l.out = l.pass(line)
	}
	n := copy(p, l.out)
	l.out = l.out[n:]
	return n, nil
}

// line reads one line and shortens it. The last one may lack its line feed.
func (l *lineReader) line() ([]byte, error) {
	var c cutter
	var line []byte
	for {
		chunk, err := l.r.ReadSlice('\n')
		if line = c.append(line, chunk); len(line) > maxLine {
			return nil, errLine
		}
		switch {
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// pass returns what the SDK gets of a line.
func (l *lineReader) pass(line []byte) []byte {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	switch err := json.Unmarshal(line, &m); {
	case err != nil || m.ID == nil && m.Method == "":
		l.garbage(line)
		return nil
	case m.Method == methodUpdate:
		l.update(m.Params)
		return nil
	case m.ID == nil:
		return nil // no other notification of an agent is of use
	}
	if line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	return slices.Clip(line)
}

// cutter shortens the strings of one line of JSON.
type cutter struct {
	inString bool
	// escape is 0 outside an escape sequence, 1 after its backslash, and above 1 while hex digits are
	// due.
	escape int
	// size is the bytes of the present string; cut is set while its rest is dropped.
	size int
	cut  bool
}

func (c *cutter) append(dst, chunk []byte) []byte {
	for _, b := range chunk {
		if c.keep(b) {
			dst = append(dst, b)
		}
	}
	return dst
}

// keep moves the state by one byte and reports whether the line keeps it. A string is cut before a
// character: not within an escape sequence, nor within a rune of UTF-8.
func (c *cutter) keep(b byte) bool {
	switch {
	case !c.inString:
		c.inString, c.cut, c.size = b == '"', false, 0
		return true
	case c.escape == 0 && b == '"', b == '\n':
		c.inString, c.escape = false, 0
		return true
	case c.escape == 0 && b&0xc0 != 0x80 && c.size >= maxString:
		c.cut = true
	}
	switch {
	case c.escape == 0 && b == '\\':
		c.escape = 1
	case c.escape == 1 && b == 'u':
		c.escape = 5
	case c.escape == 1, c.escape == 2:
		c.escape = 0
	case c.escape > 2:
		c.escape--
	}
	c.size++
	return !c.cut
}
