package tools

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// edit makes one call of the file editor, as a model makes it.
func edit(t *testing.T, tool Tool, arguments map[string]any) Observation {
	t.Helper()
	b, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	call, err := tool.Parse(string(b))
	if err != nil {
		return Observation{IsError: true, Members: map[string]any{"refused": err.Error()}}
	}
	return tool.Run(t.Context(), call.Action)
}

// said is all that a model reads of an observation.
func said(o Observation) string {
	var parts []string
	for _, c := range o.Content {
		parts = append(parts, c.Text)
	}
	if r, ok := o.Members["refused"].(string); ok {
		parts = append(parts, r)
	}
	return strings.Join(parts, "\n")
}

func fileEditorOf(t *testing.T, dir string) Tool {
	t.Helper()
	s := Open(Config{WorkingDir: dir, StateDir: t.TempDir()})
	t.Cleanup(s.Close)
	for _, tool := range s.Tools() {
		if tool.Definition().Name == "file_editor" {
			return tool
		}
	}
	t.Fatal("there is no file_editor")
	return nil
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFileEditor_Life creates a file, changes it in each way, and undoes the changes.
func TestFileEditor_Life(t *testing.T) {
	dir := t.TempDir()
	tool, path := fileEditorOf(t, dir), filepath.Join(dir, "sub", "a.txt")
	steps := []struct {
		arguments map[string]any
		after     string
	}{
		{map[string]any{"command": "create", "file_text": "one\ntwo\nthree\n"}, "one\ntwo\nthree\n"},
		{map[string]any{"command": "str_replace", "old_str": "two", "new_str": "2"}, "one\n2\nthree\n"},
		{map[string]any{"command": "insert", "insert_line": 1, "new_str": "half"}, "one\nhalf\n2\nthree\n"},
		{map[string]any{"command": "undo_edit"}, "one\n2\nthree\n"},
		{map[string]any{"command": "undo_edit"}, "one\ntwo\nthree\n"},
	}
	for i, step := range steps {
		step.arguments["path"] = path
		if o := edit(t, tool, step.arguments); o.IsError {
			t.Fatalf("step %d: %s", i, said(o))
		}
		if got := content(t, path); got != step.after {
			t.Errorf("after step %d the file is %q, want %q", i, got, step.after)
		}
	}
	o := edit(t, tool, map[string]any{"command": "view", "path": path, "view_range": []int{2, 3}})
	if got := said(o); o.IsError || !strings.Contains(got, "2\ttwo") || strings.Contains(got, "one") {
		t.Errorf("the view is %q", got)
	}
	if got := said(edit(t, tool, map[string]any{"command": "view", "path": dir})); !strings.Contains(got, "a.txt") {
		t.Errorf("the directory is %q", got)
	}
}

// TestFileEditor_Diff checks the two members that clients draw a change from.
func TestFileEditor_Diff(t *testing.T) {
	dir := t.TempDir()
	tool, path := fileEditorOf(t, dir), filepath.Join(dir, "a.txt")
	made := edit(t, tool, map[string]any{"command": "create", "path": path, "file_text": "old\n"})
	changed := edit(t, tool, map[string]any{"command": "str_replace", "path": path, "old_str": "old", "new_str": "new"})
	for name, c := range map[string]struct {
		o          Observation
		prev       bool
		old, fresh string
	}{"create": {made, false, "", "old\n"}, "str_replace": {changed, true, "old\n", "new\n"}} {
		b, err := json.Marshal(c.o)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Kind       string  `json:"kind"`
			PrevExist  bool    `json:"prev_exist"`
			OldContent *string `json:"old_content"`
			NewContent *string `json:"new_content"`
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if got.Kind != "FileEditorObservation" || got.PrevExist != c.prev || got.NewContent == nil ||
			*got.NewContent != c.fresh ||
			(c.old != "" && (got.OldContent == nil || *got.OldContent != c.old)) {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// TestFileEditor_Refuses makes calls that must change nothing.
func TestFileEditor_Refuses(t *testing.T) {
	dir := t.TempDir()
	tool := fileEditorOf(t, dir)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	twice, binary := file("twice", "same\nsame\n"), file("binary", "\x00\x01\x02\xff")
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		arguments map[string]any
		want      string
	}{
		"not unique": {
			map[string]any{"command": "str_replace", "path": twice, "old_str": "same", "new_str": "x"},
			"ultiple",
		},
		"not there": {
			map[string]any{"command": "str_replace", "path": twice, "old_str": "other", "new_str": "x"},
			"did not appear",
		},
		"no old text": {map[string]any{"command": "str_replace", "path": twice, "new_str": "x"}, "old_str"},
		"exists":      {map[string]any{"command": "create", "path": twice, "file_text": "x"}, "exist"},
		"relative":    {map[string]any{"command": "view", "path": "twice"}, "absolute"},
		"missing":     {map[string]any{"command": "view", "path": dir + "/none"}, "exist"},
		"unknown":     {map[string]any{"command": "delete", "path": twice}, "command"},
		"beyond the end": {
			map[string]any{"command": "insert", "path": twice, "insert_line": 9, "new_str": "x"},
			"insert_line",
		},
		"range":          {map[string]any{"command": "view", "path": twice, "view_range": []int{3, 9}}, "view_range"},
		"binary":         {map[string]any{"command": "view", "path": binary}, "binary"},
		"fifo":           {map[string]any{"command": "view", "path": fifo}, "file"},
		"nothing undone": {map[string]any{"command": "undo_edit", "path": twice}, "edit"},
	} {
		t.Run(name, func(t *testing.T) {
			o := edit(t, tool, c.arguments)
			if !o.IsError || !strings.Contains(said(o), c.want) {
				t.Errorf("error %v: %q, want %q in it", o.IsError, said(o), c.want)
			}
		})
	}
	if got := content(t, twice); got != "same\nsame\n" {
		t.Errorf("a refused call changed the file: %q", got)
	}
	if call, err := tool.Parse(`{"command":"view"`); err == nil {
		t.Errorf("broken JSON became %s", call.Action)
	}
}

// TestFileEditor_Parallel makes many calls on one file at once: each is done whole.
func TestFileEditor_Parallel(t *testing.T) {
	dir := t.TempDir()
	tool, path := fileEditorOf(t, dir), filepath.Join(dir, "a.txt")
	const calls = 16
	text := ""
	for i := range calls {
		text += fmt.Sprintf("line <%d>\n", i)
	}
	edit(t, tool, map[string]any{"command": "create", "path": path, "file_text": text})
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			o := edit(t, tool,
				map[string]any{"command": "str_replace", "path": path, "old_str": fmt.Sprintf("<%d>", i), "new_str": "done"})
			if o.IsError {
				t.Errorf("call %d: %s", i, said(o))
			}
		})
	}
	group.Wait()
	if got := content(t, path); got != strings.Repeat("line done\n", calls) {
		t.Errorf("the file is %q", got)
	}
}

// TestTaskTracker_KeepsItsList plans and reads the plan again with another set of tools, as after a
// restart.
func TestTaskTracker_KeepsItsList(t *testing.T) {
	state := t.TempDir()
	tracker := func() Tool {
		s := Open(Config{WorkingDir: t.TempDir(), StateDir: state})
		t.Cleanup(s.Close)
		for _, tool := range s.Tools() {
			if tool.Definition().Name == "task_tracker" {
				return tool
			}
		}
		t.Fatal("there is no task_tracker")
		return nil
	}
	plan := map[string]any{"command": "plan", "task_list": []any{
		map[string]any{"title": "mend the test", "notes": "first", "status": "in_progress"}}}
	if o := edit(t, tracker(), plan); o.IsError {
		t.Fatal(said(o))
	}
	if got := said(edit(t, tracker(), map[string]any{"command": "view"})); !strings.Contains(got, "mend the test") {
		t.Errorf("the plan is %q", got)
	}
	plan["task_list"] = []any{map[string]any{"title": "x", "status": "someday"}}
	if o := edit(t, tracker(), plan); !o.IsError {
		t.Errorf("a status that does not exist became %q", said(o))
	}
}

// The bytes say what is a picture: a pointer of git-lfs that is named as one is a text.
func TestFileEditor_PicturesByTheirBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := fileEditorOf(t, dir)
	for name, c := range map[string]struct{ bytes, shown string }{
		"pointer.png": {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs"},
		"photo.png":   {"\xff\xd8\xff\xe0\x00\x10JFIF", "data:image/jpeg;base64,"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.bytes), 0o600); err != nil {
			t.Fatal(err)
		}
		o := edit(t, tool, map[string]any{"command": "view", "path": path})
		shown := said(o)
		for _, part := range o.Content {
			shown += strings.Join(part.ImageURLs, " ")
		}
		if o.IsError || !strings.Contains(shown, c.shown) {
			t.Errorf("%s is shown as %q", name, shown)
		}
	}
}

// TestFileEditor_MissesByWhitespace says where a text is that differs by whitespace alone, and changes
// nothing.
func TestFileEditor_MissesByWhitespace(t *testing.T) {
	const text = "package p\n\nfunc f() {\n\tif a  {\n\t\treturn\n\t}\n}\n\nfunc g() {\n\tif a {\n\t\treturn\n\t}\n}\n"
	for name, c := range map[string]struct{ old, want string }{
		"spaces for tabs": {"func f() {\n    if a {\n        return", "Lines 3 to 5 differ from it by whitespace alone. " +
			"They are exactly:\nfunc f() {\n\tif a  {\n\t\treturn"},
		"another break":     {"func f(){ if a { return } }", "Lines 3 to 7"},
		"two places":        {"if a {\n return\n}", "Lines 10 to 12"},
		"the end of a line": {"package p  \n\nfunc f()", "Lines 1 to 3"},
		"another text":      {"func h() {", "did not appear verbatim in"},
	} {
		path := filepath.Join(t.TempDir(), "p.go")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := edit(t, toolOf(t, filepath.Dir(path), FileEditorName), map[string]any{
			"command": "str_replace", "path": path, "old_str": c.old, "new_str": "x"})
		if !o.IsError || !strings.Contains(said(o), c.want) ||
			strings.Contains(said(o), "whitespace") == (name == "another text") {
			t.Errorf("%s: %s", name, said(o))
		}
		if content(t, path) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}
