package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

const (
	maxFile      = 10 << 20 // bytes of a file that is viewed or edited
	maxView      = 16_000   // characters of a file in one observation
	maxLineView  = 2_000    // characters of one line in it
	maxDiff      = 200_000  // bytes of old_content and of new_content
	snippetLines = 4        // around a change
	maxUndo      = 10       // changes of one file that can be undone
	maxUndoBytes = 64 << 20 // of all files
)

// The commands of the file editor.
const (
	cmdView    = "view"
	cmdCreate  = "create"
	cmdReplace = "str_replace"
	cmdInsert  = "insert"
	cmdUndo    = "undo_edit"
)

// fileEditor views and changes files.
type fileEditor struct {
	c Config
	// plan is the one file that a planning agent may change, "" for an editor of all files.
	plan string

	mu    sync.Mutex
	locks map[string]*fileLock
	undo  undoLog
}

// fileLock is held by the call that uses a file. users counts those that hold or want it.
type fileLock struct {
	sync.Mutex
	users int
}

// fileEditorAction is the action of the file editor.
//
//nolint:lll // a description is one tag
type fileEditorAction struct {
	Kind       string  `json:"kind" tool:"-"`
	Command    string  `json:"command" tool:"required" enum:"view,create,str_replace,insert,undo_edit" jsonschema:"What to do: view, create, str_replace, insert or undo_edit."`
	Path       string  `json:"path" tool:"required" jsonschema:"The absolute path of the file or directory."`
	FileText   *string `json:"file_text" jsonschema:"create: the content of the new file."`
	OldStr     *string `json:"old_str" jsonschema:"str_replace: the text to replace, exactly as it is in the file."`
	NewStr     *string `json:"new_str" jsonschema:"str_replace: the text in its place; without it, old_str is removed. insert: the text to insert."`
	InsertLine *int    `json:"insert_line" jsonschema:"insert: the number of the line after which new_str is inserted; 0 is the beginning of the file."`
	ViewRange  []int   `json:"view_range" jsonschema:"view of a file: the first and the last line, from 1; [11, 20] shows ten lines, [11, -1] shows the rest."`
}

func newFileEditor(c Config) *fileEditor {
	return &fileEditor{c: c, locks: map[string]*fileLock{}}
}

// PlanFile is the plan's place below the working directory.
const PlanFile = ".agents_tmp/PLAN.md"

func newPlanEditor(c Config) *fileEditor {
	e := newFileEditor(c)
	e.plan = filepath.Join(c.WorkingDir, PlanFile)
	return e
}

// kind is the beginning of the kinds of the tool, its actions and its observations.
func (e *fileEditor) kind() string {
	if e.plan != "" {
		return "PlanningFileEditor"
	}
	return "FileEditor"
}

// Definition implements Tool.
//
//nolint:lll // a paragraph of the description is a line
func (e *fileEditor) Definition() Definition {
	name, note := FileEditorName, ""
	if e.plan != "" {
		name, note = PlanEditorName, "\n\nEvery file can be viewed. The only one that can be changed is the plan, "+e.plan+" ."
	}
	return Definition{
		Name: name, Title: name, Kind: e.kind() + "Tool", OnlyNamed: e.plan != "",
		ActionType: e.kind() + "Action", ObservationType: e.kind() + "Observation",
		Description: `View, create and edit text files.

* view shows a file with line numbers, or a directory two levels deep. Images are shown as images.
* create makes a new file, and the directories above it. It refuses a path that exists.
* str_replace replaces old_str by new_str. old_str must be in the file exactly once, with the same spaces and indentation: view the file first, and take in some lines around the change. Without new_str, old_str is removed.
* insert puts new_str after the line insert_line.
* undo_edit takes back the last change that this tool made to the file.

Paths are absolute. The working directory is ` + e.c.WorkingDir + ` . Several edits of one file can be ` +
			`sent as calls in one answer.` + note,
		Parameters:  Parameters(SchemaOf[fileEditorAction]()),
		Annotations: &event.ToolAnnotations{Title: name, DestructiveHint: e.plan == ""},
	}
}

// Parse implements Tool.
func (e *fileEditor) Parse(arguments string) (Call, error) {
	var a fileEditorAction
	call, err := parse(arguments, e.kind()+"Action", &a)
	if err == nil {
		err = a.check()
	}
	return call, err
}

// check checks that a command has what it needs.
func (a *fileEditorAction) check() error {
	missing := func(name, hint string) error {
		return fmt.Errorf("Parameter `%s` is required for command: %s. %s", name, a.Command, hint)
	}
	switch {
	case a.Command == cmdCreate && a.FileText == nil:
		return missing("file_text", "It is the whole content of the new file; "+
			"for a file that exists use str_replace or insert.")
	case a.Command == cmdReplace && a.OldStr == nil:
		return missing("old_str", "View the file and copy the text to replace from it.")
	case a.Command == cmdReplace && *a.OldStr == "":
		return errors.New("Parameter `old_str` is empty. View the file and copy the text to replace from it, or use insert.")
	case a.Command == cmdReplace && a.NewStr != nil && *a.NewStr == *a.OldStr:
		return errors.New("No replacement was performed. `new_str` and `old_str` must be different.")
	case a.Command == cmdInsert && a.InsertLine == nil:
		return missing("insert_line", "new_str is inserted after this line; 0 is the beginning of the file.")
	case a.Command == cmdInsert && a.NewStr == nil:
		return missing("new_str", "It is the text to insert.")
	case a.ViewRange != nil && len(a.ViewRange) != 2:
		return fmt.Errorf("Invalid `view_range` parameter: %v. It should be a list of two integers.", a.ViewRange)
	}
	return nil
}

// Run implements Tool.
func (e *fileEditor) Run(ctx context.Context, action json.RawMessage) Observation {
	var a fileEditorAction
	if err := json.Unmarshal(action, &a); err != nil {
		return e.failed(a, fmt.Errorf("the action can't be read: %w", err))
	}
	return Within(ctx, e.kind()+"Observation", func() Observation {
		var o Observation
		err := a.check()
		if err == nil {
			err = credential.Do(e.c.Credential, func() error {
				var err error
				o, err = e.run(ctx, a)
				return err
			})
		}
		if err != nil {
			return e.failed(a, err)
		}
		return o
	}, func() Observation {
		return e.failed(a, errors.New("The call was interrupted. The file may have been changed; view it."))
	})
}

// run runs an action as the tools' user.
func (e *fileEditor) run(ctx context.Context, a fileEditorAction) (Observation, error) {
	if !filepath.IsAbs(a.Path) {
		hint := "The path should be an absolute path, starting with `/`."
		if maybe := filepath.Join(e.c.WorkingDir, a.Path); exists(maybe) {
			hint += " Maybe you meant " + maybe + "?"
		}
		return Observation{}, invalid("path", a.Path, hint)
	}
	// What links point to is edited, and locked once whatever the way to it.
	path, err := resolve(filepath.Clean(a.Path))
	if err != nil {
		return Observation{}, fmt.Errorf("The path %s can't be resolved: %w", a.Path, err)
	}
	if err := e.mayChange(a, path); err != nil {
		return Observation{}, err
	}
	defer e.lock(path)()
	if ctx.Err() != nil {
		return Observation{}, errors.New("The call was interrupted before it began.")
	}
	info, err := os.Stat(path)
	switch {
	case err != nil && !os.IsNotExist(err):
		return Observation{}, fmt.Errorf("The path %s can't be read: %w", a.Path, err)
	case a.Command == cmdCreate && err == nil:
		return Observation{}, invalid("path", a.Path, "File already exists at: "+a.Path+". Cannot overwrite "+
			"files using command `create`.")
	case a.Command == cmdCreate:
		return e.create(a, path)
	case err != nil:
		return Observation{}, invalid("path", a.Path, "The path "+a.Path+" does not exist. Please provide a valid path.")
	case info.IsDir() && a.Command != cmdView:
		return Observation{}, invalid("path", a.Path, "The path "+a.Path+" is a directory and only the `view` command "+
			"can be used on directories.")
	case info.IsDir():
		return e.viewDirectory(a, path)
	case !info.Mode().IsRegular():
		return Observation{}, fmt.Errorf("File validation failed for %s: it is no regular file (%s).", a.Path,
			info.Mode().Type())
	}
	switch a.Command {
	case cmdView:
		return e.view(a, path)
	case cmdReplace:
		return e.replace(a, path)
	case cmdInsert:
		return e.insert(a, path)
	case cmdUndo:
		return e.undoEdit(a, path)
	}
	return Observation{}, fmt.Errorf(
		"Unrecognized command %q. The commands are view, create, str_replace, insert and undo_edit.",
		a.Command,
	)
}

// mayChange refuses to change what is not the plan. path has no links in it, and the plan's may have
// none but those above the working directory: a link could make another file of it.
func (e *fileEditor) mayChange(a fileEditorAction, path string) error {
	if e.plan == "" || a.Command == cmdView {
		return nil
	}
	dir, err := resolve(filepath.Clean(e.c.WorkingDir))
	if err != nil || path != filepath.Join(dir, PlanFile) {
		return fmt.Errorf("The file %s can't be changed: a plan is made. Write what to do to %s.", a.Path, e.plan)
	}
	return nil
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// resolve follows the links of a path whose end may not exist.
func resolve(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil || !os.IsNotExist(err) {
		return real, err
	}
	if target, err := os.Readlink(path); err == nil {
		return "", fmt.Errorf("it is a link to %s, which does not exist", target)
	}
	dir, err := resolve(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// lock locks a path and returns the function that unlocks it.
func (e *fileEditor) lock(path string) func() {
	e.mu.Lock()
	l := e.locks[path]
	if l == nil {
		l = &fileLock{}
		e.locks[path] = l
	}
	l.users++
	e.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		e.mu.Lock()
		if l.users--; l.users == 0 {
			delete(e.locks, path)
		}
		e.mu.Unlock()
	}
}

func (e *fileEditor) create(a fileEditorAction, path string) (Observation, error) {
	if len(*a.FileText) > maxFile {
		return Observation{}, fmt.Errorf("file_text has %d bytes; at most %d are allowed", len(*a.FileText), maxFile)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return Observation{}, fmt.Errorf("The directory of %s can't be made: %w", a.Path, err)
	}
	f := file{path: path, text: *a.FileText, isNew: true}
	if err := f.write(); err != nil {
		return Observation{}, fmt.Errorf("Ran into %w while trying to write to %s", err, a.Path)
	}
	return e.edited(a, "File created successfully at: "+a.Path, nil, &f.text), nil
}

func (e *fileEditor) replace(a fileEditorAction, path string) (Observation, error) {
	f, err := readFile(path, a.Path)
	if err != nil {
		return Observation{}, err
	}
	old, replacement := f.lines(*a.OldStr), ""
	if a.NewStr != nil {
		replacement = f.lines(*a.NewStr)
	}
	if !strings.Contains(f.text, old) {
		// Models often add or lose space around the text.
		if trimmed := strings.TrimSpace(old); trimmed != "" {
			old, replacement = trimmed, strings.TrimSpace(replacement)
		}
	}
	switch n := strings.Count(f.text, old); n {
	case 0:
		return Observation{}, fmt.Errorf("No replacement was performed, old_str `%s` did not appear verbatim in %s.%s",
			elide(*a.OldStr, 2000), a.Path, nearly(f.text, *a.OldStr))
	case 1:
	default:
		return Observation{}, fmt.Errorf(
			"No replacement was performed. Multiple occurrences of old_str `%s` in lines %v. Please ensure it is unique.",
			elide(*a.OldStr, 2000),
			linesOf(f.text, old),
		)
	}
	before := f.text
	at := strings.Index(before, old)
	f.text = before[:at] + replacement + before[at+len(old):]
	line := strings.Count(before[:at], "\n") + 1
	return e.change(a, f, before, line, line+strings.Count(replacement, "\n"))
}

func (e *fileEditor) insert(a fileEditorAction, path string) (Observation, error) {
	f, err := readFile(path, a.Path)
	if err != nil {
		return Observation{}, err
	}
	lines := strings.SplitAfter(f.text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	n := *a.InsertLine
	if n < 0 || n > len(lines) {
		return Observation{}, invalid("insert_line", fmt.Sprint(n),
			fmt.Sprintf("It should be within the range of allowed values: [0, %d]", len(lines)))
	}
	before := f.text
	head := strings.Join(lines[:n], "")
	if head != "" && !strings.HasSuffix(head, "\n") {
		head += "\n"
	}
	text := f.lines(*a.NewStr)
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	f.text = head + text + strings.Join(lines[n:], "")
	return e.change(a, f, before, n+1, n+strings.Count(text, "\n"))
}

// change writes a changed file and reports the lines first to last.
func (e *fileEditor) change(a fileEditorAction, f *file, before string, first, last int) (Observation, error) {
	if len(f.text) > maxFile {
		return Observation{}, fmt.Errorf("The file would have %d bytes; at most %d are allowed.", len(f.text), maxFile)
	}
	if err := f.write(); err != nil {
		return Observation{}, fmt.Errorf("Ran into %w while trying to write to %s", err, a.Path)
	}
	e.mu.Lock()
	e.undo.push(f.path, before, f.text)
	e.mu.Unlock()
	lines := strings.Split(f.text, "\n")
	from, to := max(1, first-snippetLines), min(len(lines), last+snippetLines)
	text := "The file " + a.Path + " has been edited. " + numbered(lines[from-1:to], "a snippet of "+a.Path, from) +
		"Review the changes and make sure they are as expected. Edit the file again if necessary."
	return e.edited(a, text, &before, &f.text), nil
}

func (e *fileEditor) undoEdit(a fileEditorAction, path string) (Observation, error) {
	f, err := readFile(path, a.Path)
	if err != nil {
		return Observation{}, err
	}
	e.mu.Lock()
	before, after, found := e.undo.last(path)
	e.mu.Unlock()
	if !found {
		return Observation{}, fmt.Errorf("No edit history found for %s.", a.Path)
	}
	if f.text != after {
		return Observation{}, fmt.Errorf(
			"%s was changed after the last edit by something else. "+
				"Undoing the edit would lose that change; edit the file instead.",
			a.Path,
		)
	}
	f.text = before
	if err := f.write(); err != nil {
		return Observation{}, fmt.Errorf("Ran into %w while trying to write to %s", err, a.Path)
	}
	e.mu.Lock()
	e.undo.pop(path)
	e.mu.Unlock()
	text := "Last edit to " + a.Path + " undone successfully. " + numbered(strings.Split(before, "\n"), a.Path, 1)
	return e.edited(a, text, &after, &before), nil
}

// edited reports a change. What is too large to be drawn is left out of the diff.
func (e *fileEditor) edited(a fileEditorAction, text string, before, after *string) Observation {
	o := e.observe(a, text)
	o.Members["prev_exist"] = before != nil
	content := func(s *string) any {
		if s == nil || len(*s) > maxDiff {
			return nil
		}
		return Mask(e.c.Secrets(), *s)
	}
	o.Members["old_content"], o.Members["new_content"] = content(before), content(after)
	return o
}

func (e *fileEditor) observe(a fileEditorAction, text string) Observation {
	return Observation{
		Kind: e.kind() + "Observation", Content: []event.Content{event.TextContent(Mask(e.c.Secrets(), text))},
		Members: map[string]any{
			"command": a.Command, "path": a.Path, "prev_exist": true, "old_content": nil, "new_content": nil,
		},
	}
}

func (e *fileEditor) failed(a fileEditorAction, err error) Observation {
	a.Command = cmp.Or(a.Command, cmdView)
	o := e.observe(a, err.Error())
	o.IsError = true
	return o
}

func invalid(parameter, value, hint string) error {
	return fmt.Errorf("Invalid `%s` parameter: %s. %s", parameter, value, hint)
}

// linesOf returns the numbers of the lines in which a text begins, at most 20.
func linesOf(text, part string) []int {
	var out []int
	line := 1
	for len(out) < 20 {
		i := strings.Index(text, part)
		if i < 0 {
			break
		}
		line += strings.Count(text[:i], "\n")
		out = append(out, line)
		line += strings.Count(part, "\n")
		text = text[i+len(part):]
	}
	return out
}
