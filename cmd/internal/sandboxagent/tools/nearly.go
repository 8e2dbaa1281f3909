package tools

import (
	"bytes"
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
	all, at := bare(text)
	want, _ := bare(old)
	if len(want) == 0 {
		return ""
	}
	var b strings.Builder
	n := 0
	for from := 0; ; n++ {
		i := bytes.Index(all[from:], want)
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

// bare returns the bytes of a text that are no whitespace, and where they are.
func bare(text string) (b []byte, at []int) {
	for i := range len(text) {
		if strings.IndexByte(" \t\n\r\f\v", text[i]) < 0 {
			b, at = append(b, text[i]), append(at, i)
		}
	}
	return b, at
}
