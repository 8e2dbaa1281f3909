package decode

import (
	"strings"
	"unicode/utf8"
)

// Truncate cuts s to at most n bytes at a character boundary and appends "…" if it cut.
func Truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// Tail returns the last n bytes of s, without what is not UTF-8, such as half a character.
func Tail(s string, n int) string {
	return strings.ToValidUTF8(s[max(0, len(s)-n):], "")
}

// LastLines joins the last n lines of s to one line.
func LastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(s, "")), "\n")
	lines = lines[max(0, len(lines)-n):]
	return strings.Join(strings.Fields(strings.Join(lines, " | ")), " ")
}
