package tools

import (
	"fmt"
	"strings"
)

const (
	// mostNearly is how many places are named.
	mostNearly = 3
	// maxNearly bounds what is shown of one, in characters.
	maxNearly = 2000
	// largestNearly is that of a file in which is looked, in bytes.
	largestNearly = 1 << 20
)

// nearly says where a text has old but for its whitespace, and what is there; empty if it has it nowhere.
func nearly(text, old string) string {
	if len(text) > largestNearly {
		return ""
	}
	// The positions in text of its characters that are no whitespace.
	var bare []byte
	var at []int
	for i := range len(text) {
		if !blank(text[i]) {
			bare, at = append(bare, text[i]), append(at, i)
		}
	}
	want := strings.Map(func(r rune) rune {
		if r < 0x80 && blank(byte(r)) {
			return -1
		}
		return r
	}, old)
	if want == "" {
		return ""
	}
	var b strings.Builder
	n, all := 0, string(bare)
	for from := 0; ; n++ {
		i := strings.Index(all[from:], want)
		if i < 0 {
			break
		}
		if first, last := at[from+i], at[from+i+len(want)-1]; n < mostNearly {
			begin := strings.LastIndexByte(text[:first], '\n') + 1
			end := len(text)
			if next := strings.IndexByte(text[last:], '\n'); next >= 0 {
				end = last + next
			}
			line := strings.Count(text[:first], "\n") + 1
			fmt.Fprintf(&b, "\nLines %d to %d differ from it by whitespace alone. They are exactly:\n%s", line,
				line+strings.Count(text[first:last], "\n"), elide(text[begin:end], maxNearly))
		}
		from += i + len(want)
	}
	if n > mostNearly {
		fmt.Fprintf(&b, "\nThere are %d more such places.", n-mostNearly)
	}
	return b.String()
}

func blank(c byte) bool {
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'
}
