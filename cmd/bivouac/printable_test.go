package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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

// TestPrintable_ErrorsAndJSON: what a node, or who poses as one, answers reaches no terminal raw.
func TestPrintable_ErrorsAndJSON(t *testing.T) {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"detail": "one\n" + hostile})
	}))
	defer node.Close()
	env := map[string]string{"BIVOUAC_ADDR": node.URL, "BIVOUAC_API_KEY": "k"}
	for _, args := range [][]string{{"sandboxes", "exec", "a", "ls"}, {"sandboxes", "cp", "a:/x", "-"}} {
		_, _, stderr := runCommand(t, env, args...)
		if !strings.Contains(stderr, "one\nbivouac: "+shownHostile) {
			t.Errorf("%v: %q", args, stderr)
		}
	}
	var out bytes.Buffer
	if err := printJSON(&out, map[string]string{"title": hostile}); err != nil {
		t.Fatal(err)
	}
	var read struct{ Title string }
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || read.Title != hostile {
		t.Errorf("programs read %q, %v", read.Title, err)
	}
	if strings.ContainsAny(out.String(), "\x1b\x07\u009b\u202e\r") {
		t.Errorf("the JSON has what a terminal obeys: %q", out.String())
	}
}
