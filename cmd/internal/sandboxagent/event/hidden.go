package event

import "strings"

// minLine is that of a line of a longer value, in bytes. Of several lines, such as those of a key, each
// is masked: programs print them indented, escaped, or without their ends.
const minLine = 8

// Hidden returns the texts of a secret's value that no event shows, the value first.
func Hidden(value string) []string {
	list := []string{value, strings.TrimSpace(value), strings.ReplaceAll(value, "\r\n", "\n")}
	if !strings.Contains(strings.TrimSpace(value), "\n") {
		return list
	}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= minLine {
			list = append(list, line)
		}
	}
	return list
}
