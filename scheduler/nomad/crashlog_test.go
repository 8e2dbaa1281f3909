package nomad

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"":                             "",
		"a\nb\n":                       "a | b",
		"1\n2\n3\n4\n5\n6\n":           "2 | 3 | 4 | 5 | 6",
		"  much   space\t\n":           "much space",
		"key kAbCdEfGhIjKlMnOpQr12345": "key **********",
		"sandbox-0123456789abcdef0123456789abcdef":         "sandbox-0123456789abcdef0123456789abcdef",
		"/v/5b8f8f2e-8d1b-4f3c-9a5e-0123456789ab/x":        "/v/5b8f8f2e-8d1b-4f3c-9a5e-0123456789ab/x",
		"ThisIsAVeryLongNameOfAnExceptionWithoutDigits":    "ThisIsAVeryLongNameOfAnExceptionWithoutDigits",
		strings.Repeat("x1", lastBytes/2) + "\nwhole line": "whole line",
		"\xa4half a character":                             "half a character",
	} {
		if got := oneLine(in); got != want {
			t.Errorf("%.60q: %q, want %q", in, got, want)
		}
	}
}

// reader reads frames as Nomad would send them.
func reader(ctx context.Context, follow, over bool, frames string) *logReader {
	body := io.NopCloser(strings.NewReader(frames))
	text := bufio.NewReader(body)
	l := &logReader{
		outer: ctx, cancel: func(error) {}, body: body, text: text, dec: json.NewDecoder(text), follow: follow, left: 5,
		over: make(chan struct{}), denied: func(err error) error { return err },
	}
	if over {
		close(l.over)
	}
	return l
}

func TestLogReader(t *testing.T) {
	const ab, cd, beat = `{"Data":"YWI=","File":"f","Offset":2}`, `{"Data":"Y2Q=","File":"f","Offset":4}`, `{}`
	for name, c := range map[string]struct {
		follow, over bool
		frames, want string
		code         fsm.Code
	}{
		"all of it":                     {false, false, ab + beat + cd, "abcd", ""},
		"bounded":                       {false, false, ab + cd + ab + ab, "abcda", ""},
		"heartbeats of a living task":   {true, false, ab + beat + beat + beat + cd, "abcd", fsm.CodeScheduler},
		"two heartbeats after the end":  {true, true, ab + beat + cd + beat + beat + ab, "abcd", ""},
		"the stream ends with the task": {true, true, ab + cd, "abcd", ""},
		"the stream breaks":             {true, false, ab, "ab", fsm.CodeScheduler},
		"an error in its midst":         {false, false, ab + "failed to stream", "ab", fsm.CodeScheduler},
	} {
		l := reader(t.Context(), c.follow, c.over, c.frames)
		got, err := io.ReadAll(l)
		if string(got) != c.want || (err != nil) != (c.code != "") || err != nil && fsm.CodeOf(err) != c.code {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}
