package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/renameio/v2"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
)

// tasksFile is the list's file in the conversation's directory, by upstream's name.
const tasksFile = "TASKS.json"

// maxTasks bounds the list.
const maxTasks = 500

// taskTracker keeps the model's list of tasks.
type taskTracker struct {
	c Config

	mu    sync.Mutex
	tasks []task
	read  bool
}

// task is one task. Its members are upstream's.
type task struct {
	Title  string `json:"title" tool:"required" jsonschema:"What is to do, in a few words."`
	Notes  string `json:"notes" jsonschema:"Details."`
	Status string `json:"status" enum:"todo,in_progress,done" jsonschema:"Default: todo."`
}

//nolint:lll // a description is one tag
type taskTrackerAction struct {
	Kind     string `json:"kind" tool:"-"`
	Command  string `json:"command" enum:"view,plan" jsonschema:"view shows the list; plan replaces it by task_list. Default: view."`
	TaskList []task `json:"task_list" jsonschema:"The whole list, in order. plan needs it."`
}

func newTaskTracker(c Config) *taskTracker { return &taskTracker{c: c} }

// Definition implements Tool.
//
//nolint:lll // a paragraph of the description is a line
func (t *taskTracker) Definition() Definition {
	return Definition{
		Name: TaskTrackerName, Title: TaskTrackerName, Kind: "TaskTrackerTool",
		ActionType: "TaskTrackerAction", ObservationType: "TaskTrackerObservation",
		Description: `Keep a list of tasks that you and the user see.
Use it for work of several steps: plan the steps before you begin, and send the whole list again with plan whenever a status changes. Do not use it for a single step or a question.
Have one task in_progress at a time. A task is done when its result was checked, not when it was written: while tests fail or something is missing it stays in_progress. Add the tasks that you find on the way; remove those that are no longer needed.`,
		Parameters:  Parameters(SchemaOf[taskTrackerAction]()),
		Annotations: &event.ToolAnnotations{Title: TaskTrackerName, IdempotentHint: true},
	}
}

// Parse implements Tool.
func (t *taskTracker) Parse(arguments string) (Call, error) {
	a := &taskTrackerAction{}
	call, err := parse(arguments, "TaskTrackerAction", a)
	if err != nil {
		return call, err
	}
	if err := a.check(); err != nil {
		return call, err
	}
	call.Action, err = json.Marshal(a)
	return call, err
}

// check checks an action and fills in its defaults.
func (a *taskTrackerAction) check() error {
	a.Command = cmp.Or(a.Command, "view")
	if a.Command == "plan" && a.TaskList == nil {
		return errors.New("the argument task_list is missing; plan needs the whole list")
	}
	if a.TaskList == nil {
		a.TaskList = []task{}
	}
	if len(a.TaskList) > maxTasks {
		return fmt.Errorf("task_list has %d tasks; at most %d are allowed", len(a.TaskList), maxTasks)
	}
	for i := range a.TaskList {
		one := &a.TaskList[i]
		if one.Title == "" {
			return fmt.Errorf("task %d of task_list has no title", i+1)
		}
		switch one.Status {
		case "":
			one.Status = "todo"
		case "todo", "in_progress", "done":
		default:
			return fmt.Errorf("the status of task %d is %q; it must be todo, in_progress or done", i+1, one.Status)
		}
	}
	return nil
}

// Run implements Tool.
func (t *taskTracker) Run(ctx context.Context, action json.RawMessage) Observation {
	const kind = "TaskTrackerObservation"
	return Within(ctx, kind, func() Observation {
		var a taskTrackerAction
		err := json.Unmarshal(action, &a)
		if err == nil {
			err = a.check()
		}
		if err != nil {
			return failed(kind, err.Error(), map[string]any{"command": "view", "task_list": []task{}})
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.run(a)
	}, func() Observation {
		return failed(kind, "The call was interrupted.", map[string]any{"command": "view", "task_list": []task{}})
	})
}

// run executes an action. The caller holds mu.
func (t *taskTracker) run(a taskTrackerAction) Observation {
	t.load()
	o := Observation{Kind: "TaskTrackerObservation"}
	switch {
	case a.Command == "plan":
		t.tasks = a.TaskList
		text := fmt.Sprintf("Task list has been updated with %d item(s).", len(t.tasks))
		if err := t.save(); err != nil {
			text += fmt.Sprintf(" It is not on disk and will be lost when the server restarts: %v", err)
		}
		o.Content = []event.Content{event.TextContent(text)}
	case len(t.tasks) == 0:
		o.Content = []event.Content{event.TextContent(`No task list found. Use the "plan" command to create one.`)}
	default:
		o.Content = []event.Content{event.TextContent(t.text())}
	}
	list := t.tasks
	if list == nil {
		list = []task{}
	}
	o.Members = map[string]any{"command": a.Command, "task_list": append([]task{}, list...)}
	return o
}

func (t *taskTracker) text() string {
	var b strings.Builder
	b.WriteString("# Task List\n")
	for i, one := range t.tasks {
		fmt.Fprintf(&b, "\n%d. [%s] %s\n", i+1, one.Status, one.Title)
		if one.Notes != "" {
			fmt.Fprintf(&b, "   %s\n", one.Notes)
		}
	}
	return b.String()
}

// load reads the stored list once. A file that can't be read is an empty list: the model plans anew.
func (t *taskTracker) load() {
	if t.read || t.c.StateDir == "" {
		return
	}
	t.read = true
	b, err := os.ReadFile(filepath.Join(t.c.StateDir, tasksFile))
	if err == nil {
		err = json.Unmarshal(b, &t.tasks)
	}
	if err != nil {
		t.tasks = nil
	}
}

func (t *taskTracker) save() error {
	if t.c.StateDir == "" {
		return nil
	}
	b, err := json.MarshalIndent(t.tasks, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(t.c.StateDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return renameio.WriteFile(filepath.Join(t.c.StateDir, tasksFile), b, 0o600)
}
