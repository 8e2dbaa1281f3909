package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"
	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
)

// printable replaces what a terminal would obey instead of showing it: users choose titles and
// names, and operators list them.
func printable(s string) string { return strings.Map(printableRune, s) }

func printableRune(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// printableText is printable for a text of several lines.
func printableText(s string) string {
	return strings.Map(printableInText, strings.ReplaceAll(s, "\r\n", "\n"))
}

func printableInText(r rune) rune {
	if r == '\n' || r == '\t' {
		return r
	}
	return printableRune(r)
}

// printableJSON is a JSON text in one line that a terminal shows as it is: what it would obey is
// escaped.
func printableJSON(raw []byte) ([]byte, error) {
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return nil, err
	}
	return []byte(escapeUnprintable(line.String())), nil
}

// escapeUnprintable escapes in a JSON text what a terminal would obey. The line breaks of JSON are
// between values only, and stay.
func escapeUnprintable(text string) string {
	var safe strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) || r == '\n' {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&safe, `\u%04x`, unit)
		}
	}
	return safe.String()
}

// isTerminal reports whether a command's input or output is a terminal.
func isTerminal(stream any) (*os.File, bool) {
	f, isFile := stream.(*os.File)
	return f, isFile && term.IsTerminal(int(f.Fd()))
}

// printableLog is a log as w may have it: line by line but without control characters where w is a
// terminal, else as it is.
func printableLog(log io.Reader, w io.Writer) io.Reader {
	if _, is := isTerminal(w); !is {
		return log
	}
	return printableLines(log)
}

func printableLines(log io.Reader) io.Reader {
	return transform.NewReader(log, runes.Map(printableInText))
}
