package agentserver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The kinds of mistakes of the suite's program, by the intention at which it makes them.
const (
	wrongPath   = "a wrong path"
	unknownTool = "an unknown tool"
	picture     = "a picture, and a model that takes none"
	whitespace  = "wrong whitespace in an edit"
	cutJSON     = "arguments that are cut"
	prose       = "prose in the place of a call"
	rateLimit   = "a 429"
	resetStream = "a reset in the stream"
)

// The intentions, in their order.
const (
	intendRead   = "read"
	intendEdit   = "edit"
	intendTest   = "test"
	intendFinish = "finish"
)

// mistakesAt are the kinds of mistakes at an intention.
func mistakesAt(intention string) []string {
	return map[string][]string{
		intendRead: {wrongPath, unknownTool, picture}, intendEdit: {whitespace, cutJSON, prose},
		intendTest: {rateLimit}, intendFinish: {resetStream},
	}[intention]
}

// suiteTask is a small repository with a fault: file has old in the place of new.
type suiteTask struct {
	name, file, before, old, new, after string
	// line is the wrong one, which a result shows when the file was read.
	line string
	// checks is the command whose output is want once the fault is mended.
	checks, want string
	// mistakes are by the intention at which they are made.
	mistakes map[string]string
}

// suiteTasks are the twenty tasks. Each is a function of a shell library with one wrong line.
func suiteTasks() []suiteTask {
	var tasks []suiteTask
	for i, f := range []struct{ name, old, new, call, want string }{
		{"add", "echo $(($1 - $2))", "echo $(($1 + $2))", "add 2 3", "5"},
		{"double", "echo $(($1 + 2))", "echo $(($1 * 2))", "double 5", "10"},
		{"square", "echo $(($1 * 2))", "echo $(($1 * $1))", "square 5", "25"},
		{"greet", `echo "Hullo, $1"`, `echo "Hello, $1"`, "greet Ada", "Hello, Ada"},
		{"upper", `echo "$1" | tr A-Z a-z`, `echo "$1" | tr a-z A-Z`, "upper abc", "ABC"},
		{"lower", `echo "$1" | tr a-z A-Z`, `echo "$1" | tr A-Z a-z`, "lower ABC", "abc"},
		{"first", `echo "$2"`, `echo "$1"`, "first a b", "a"},
		{"second", `echo "$1"`, `echo "$2"`, "second a b", "b"},
		{"count", `echo "$((# + 1))"`, `echo "$#"`, "count a b c", "3"},
		{"join", `echo "$1$2"`, `echo "$1-$2"`, "join a b", "a-b"},
		{"maximum", `if [ "$1" -lt "$2" ]; then echo "$1"; else echo "$2"; fi`,
			`if [ "$1" -gt "$2" ]; then echo "$1"; else echo "$2"; fi`, "maximum 3 7", "7"},
		{"minimum", `if [ "$1" -gt "$2" ]; then echo "$1"; else echo "$2"; fi`,
			`if [ "$1" -lt "$2" ]; then echo "$1"; else echo "$2"; fi`, "minimum 3 7", "3"},
		{"even", `if [ $(($1 % 2)) -eq 1 ]; then echo yes; else echo no; fi`,
			`if [ $(($1 % 2)) -eq 0 ]; then echo yes; else echo no; fi`, "even 4", "yes"},
		{"empty", `if [ -n "$1" ]; then echo yes; else echo no; fi`,
			`if [ -z "$1" ]; then echo yes; else echo no; fi`, `empty ""`, "yes"},
		{"length", `echo "${#2}"`, `echo "${#1}"`, "length abcd x", "4"},
		{"extension", `echo "${1%.*}"`, `echo "${1##*.}"`, "extension a.txt", "txt"},
		{"base", `echo "${1##*.}"`, `echo "${1%.*}"`, "base a.txt", "a"},
		{"folder", `basename "$1"`, `dirname "$1"`, "folder /a/b", "/a"},
		{"file", `dirname "$1"`, `basename "$1"`, "file /a/b", "b"},
		{"reverse", `echo "$1 $2"`, `echo "$2 $1"`, "reverse a b", "b a"},
	} {
		reads, edits := mistakesAt(intendRead), mistakesAt(intendEdit)
		t := suiteTask{
			name: f.name, file: "lib/" + f.name + ".sh",
			before: "# " + f.name + " is used by others.\n" + f.name + "() {\n", line: f.old,
			// An edit has two lines, so that its whitespace is not at its ends alone.
			old: "\tlocal given=$1\n\t" + f.old, new: "\tlocal given=$1\n\t" + f.new,
			after:    "\n}\n",
			checks:   fmt.Sprintf(". ./lib/%s.sh; %s", f.name, f.call),
			want:     f.want,
			mistakes: map[string]string{intendRead: reads[i%len(reads)], intendEdit: edits[i/2%len(edits)]},
		}
		switch i % 3 {
		case 0:
			t.mistakes[intendTest] = rateLimit
		case 1:
			t.mistakes[intendFinish] = resetStream
		}
		tasks = append(tasks, t)
	}
	return tasks
}

// testScript is what every repository is tested with.
const testScript = `#!/bin/bash
got=$(%s)
if [ "$got" = "%s" ]; then echo "TEST PASSED: %s"; else echo "TEST FAILED: got $got"; exit 1; fi
`

// write writes the task's repository.
func (s suiteTask) write(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	const png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde" +
		"\x00\x00\x00\x0cIDATx\x9cc\xf8\xcf\xc0\x00\x00\x03\x01\x01\x00\xc9\xfe\x92\xef\x00\x00\x00\x00IEND\xaeB`\x82"
	for name, text := range map[string]string{
		s.file: s.before + s.old + s.after, "logo.png": png, "README.md": "# " + s.name + "\n\nRun `bash test.sh`.\n",
		"test.sh": fmt.Sprintf(testScript, s.checks, s.want, s.name),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
