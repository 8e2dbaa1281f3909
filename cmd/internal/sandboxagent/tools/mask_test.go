package tools

import (
	"strings"
	"testing"
)

// TestMask_Lines prints a secret of several lines in the ways of programs: no line of it is left.
func TestMask_Lines(t *testing.T) {
	lines := []string{"-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcwggSjAgEAAoIB", "end+of/it="}
	for name, between := range map[string]string{
		"as it is": "\n", "indented": "\n    ", "escaped": `\n`, "carriage returns": "\r\n", "numbered": "\n  12\t",
		"in one line": " ", "quoted by a mail": "\n> ",
	} {
		for _, end := range []string{"\n", "\r\n"} {
			got := Mask(map[string]string{"KEY": strings.Join(lines, end) + end}, "a\n"+strings.Join(lines, between)+"\nz")
			for _, line := range lines {
				if strings.Contains(got, line) {
					t.Errorf("%s: %q is left in %q", name, line, got)
				}
			}
			if !strings.HasPrefix(got, "a\n") || !strings.HasSuffix(got, "z") {
				t.Errorf("%s: more is masked: %q", name, got)
			}
		}
	}
	if got := Mask(map[string]string{"J": "{\n  \"a\": 1\n}"}, "func f() {\n}"); got != "func f() {\n}" {
		t.Errorf("a short line is masked: %q", got)
	}
}
