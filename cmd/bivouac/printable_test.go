package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// hostile sets a terminal's title, clears it, and turns the direction of what follows.
const hostile = "a\x1b]0;root\x07b\x1b[2Jc\u009b1md\u202ee\rf"

const shownHostile = "a\ufffd]0;root\ufffdb\ufffd[2Jc\ufffd1md\ufffde\ufffdf"

func TestPrintable_NoTerminalObeysAUsersText(t *testing.T) {
	var out bytes.Buffer
	if err := printTable(&out, []string{"ID", "TITLE"}, [][]string{{"1", hostile}, {"2", "tab\tand\nline"}}); err != nil {
		t.Fatal(err)
	}
	if want := "ID  TITLE\n1   " + shownHostile + "\n2   tab\ufffdand\ufffdline\n"; out.String() != want {
		t.Errorf("the table is %q, want %q", out.String(), want)
	}
	out.Reset()
	if err := printFacts(&out, [][2]string{{"title", hostile}}); err != nil {
		t.Fatal(err)
	}
	if want := "title  " + shownHostile + "\n"; out.String() != want {
		t.Errorf("the facts are %q, want %q", out.String(), want)
	}
}

func TestPrintable_LogsAreRawForPrograms(t *testing.T) {
	text := "one\t" + hostile + "\ntwo \xff ünï\n"
	shown, err := io.ReadAll(printableLines(strings.NewReader(text)))
	if want := "one\t" + shownHostile + "\ntwo \ufffd ünï\n"; err != nil || string(shown) != want {
		t.Errorf("a terminal gets %q (%v), want %q", shown, err, want)
	}
	raw, err := io.ReadAll(printableLog(strings.NewReader(text), new(bytes.Buffer)))
	if err != nil || string(raw) != text {
		t.Errorf("a program gets %q (%v), want %q", raw, err, text)
	}
}
