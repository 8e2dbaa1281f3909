package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

// screen prints lines. On a terminal the last one is live: it is drawn again. All text is printable
// only.
type screen struct {
	w io.Writer
	// width returns the terminal's, 0 where there is none, which shows no live line.
	width func() int
	line  string
}

func newScreen(w io.Writer) *screen {
	f, is := isTerminal(w)
	if !is {
		return &screen{w: w, width: func() int { return 0 }}
	}
	return &screen{w: w, width: func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width <= 0 {
			return 80
		}
		return width
	}}
}

// print prints a text of some lines, above the live line.
func (s *screen) print(text string) {
	live := s.line
	s.live("")
	_, _ = fmt.Fprintln(s.w, printableText(strings.TrimRight(text, "\n"))) // nobody reads a closed terminal
	s.live(live)
}

// live replaces the live line; "" removes it.
func (s *screen) live(line string) {
	width := s.width()
	if width == 0 || line == "" && s.line == "" {
		return
	}
	s.line = line
	_, _ = io.WriteString(s.w, "\r"+ansi.EraseLineRight+ansi.Truncate(printable(line), width-1, "…"))
}

// entered says that the live line was a question which the user has answered with a line.
func (s *screen) entered() { s.line = "" }
