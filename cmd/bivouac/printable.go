package main

import (
	"io"
	"os"
	"strings"
	"unicode"

	"github.com/mattn/go-isatty"
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

// printableLog is a log as w may have it: line by line but without control characters where w is a
// terminal, else as it is.
func printableLog(log io.Reader, w io.Writer) io.Reader {
	if f, isFile := w.(*os.File); !isFile || !isatty.IsTerminal(f.Fd()) {
		return log
	}
	return printableLines(log)
}

func printableLines(log io.Reader) io.Reader {
	return transform.NewReader(log, runes.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printableRune(r)
	}))
}
