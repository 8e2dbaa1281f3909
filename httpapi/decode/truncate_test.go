package decode

import "testing"

func TestTruncate_CutsBetweenCharacters(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{
		"abc",
		3,
		"abc",
	}, {"abcd", 3, "abc…"}, {"aéé", 3, "aé…"}, {"aéé", 2, "a…"}, {"é", 0, "…"}, {"", 0, ""}} {
		if got := Truncate(c.text, c.n); got != c.want {
			t.Errorf("Truncate(%q, %d) is %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestTail_HoldsWholeCharacters(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"abc", 5, "abc"}, {"abc", 2, "bc"}, {"éa", 2, "a"}, {"a\xffb", 3, "ab"}, {"abc", 0, ""}} {
		if got := Tail(c.text, c.n); got != c.want {
			t.Errorf("Tail(%q, %d) is %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestLastLines(t *testing.T) {
	if got := LastLines("one\ntwo\n  three\t3 \n\n", 2); got != "two | three 3" {
		t.Errorf("got %q", got)
	}
}
