package agentserver

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// mostModelCalls bounds what the program says in one task.
const mostModelCalls = 60

// intender is a model with fixed intentions: it reads, edits, tests and finishes. It sees only the
// messages, by which it knows how far it is, maps each intention to a tool that is offered, and makes
// its mistakes at the same intentions for every agent. It is no measure of a model.
type intender struct {
	task suiteTask
	dir  string

	mu sync.Mutex
	// made are the mistakes that were made; at counts the requests of each intention.
	made map[string]bool
	at   map[string]int
	// requests count those with tools, others those without. repeated and bytes are what of a prompt
	// the next one begins with, and what was sent; last is the last prompt.
	requests, others       int
	repeated, whole, bytes int
	last                   string
	// times are when the requests came. steps, if set, are calls to make in the place of the task.
	times []time.Time
	steps int
}

func newIntender(task suiteTask, dir string) *intender {
	return &intender{task: task, dir: dir, made: map[string]bool{}, at: map[string]int{}}
}

// answer is the model's answer to a request.
func (p *intender) answer(r modeltest.Request) (modeltest.Answer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += len(r.Body)
	if len(r.Tools) == 0 {
		p.others++
		return modeltest.Text("A title"), true
	}
	p.requests++
	p.times = append(p.times, time.Now())
	if p.steps > 0 {
		return p.step(r), true
	}
	p.repeats(r.Body)
	if p.requests > mostModelCalls {
		return modeltest.Text("I give up."), true
	}
	if p.task.mistakes[intendRead] == picture && hasPicture(r.Body) {
		p.at[intendRead]++
		return modeltest.Answer{Fault: &modeltest.Fault{
			Kind: modeltest.BadRequest, Status: 404, Message: "No endpoints found that support image input",
		}}, true
	}
	intention := p.intends(r)
	p.at[intention]++
	mistake := p.task.mistakes[intention]
	if mistake == "" || p.made[mistake] {
		return p.does(r, intention, ""), true
	}
	p.made[mistake] = true
	return p.does(r, intention, mistake), true
}

// hasPicture reports whether the messages have a picture; tools may speak of some.
func hasPicture(body []byte) bool {
	var in struct{ Messages, Input json.RawMessage }
	_ = json.Unmarshal(body, &in) // the server has read it
	list := string(in.Messages) + string(in.Input)
	return strings.Contains(list, `"type":"image_url"`) || strings.Contains(list, `"type":"input_image"`)
}

// failed finds an error in the result of an edit, in the words of the agents.
var failed = regexp.MustCompile(
	`(?i)error|fail|not found|no replacement|did not|valid JSON|invalid|unexpected|unknown|could not|cut`)

// step is the next of many calls that do little.
func (p *intender) step(r modeltest.Request) modeltest.Answer {
	if p.requests > p.steps {
		return modeltest.Text("Done.")
	}
	return modeltest.Calls(p.runs(r.Tools, fmt.Sprintf("echo step %d", p.requests)))
}

// intends is what the program intends next, by the calls and results of the messages.
func (p *intender) intends(r modeltest.Request) string {
	results := map[string]string{}
	next := intendRead
	for _, m := range r.Messages {
		if m.Role == "tool" {
			results[m.CallID] = m.Text
		}
	}
	for _, m := range r.Messages {
		for _, c := range m.Calls {
			result, has := results[c.ID]
			what, _, is := strings.Cut(strings.TrimPrefix(c.ID, "call_"), "_")
			if !has || !is {
				continue
			}
			switch what {
			case intendRead:
				if strings.Contains(result, p.task.line) {
					next = intendEdit
				}
			case intendEdit:
				if next = intendTest; failed.MatchString(result) {
					next = intendEdit
				}
			case intendTest:
				if next = intendFinish; !strings.Contains(result, "TEST PASSED: "+p.task.name) {
					next = intendEdit
				}
			}
		}
	}
	return next
}

// does is the answer with which the program carries an intention out, with a mistake.
func (p *intender) does(r modeltest.Request, intention, mistake string) modeltest.Answer {
	var c modeltest.Call
	switch intention {
	case intendRead:
		file := p.task.file
		switch mistake {
		case wrongPath:
			file = "src/" + file
		case picture:
			file = "logo.png"
		}
		if c = p.reads(r.Tools, file); mistake == unknownTool {
			c.Name = "open_a_file"
		}
	case intendEdit:
		old := p.task.old
		if mistake == whitespace {
			old = strings.ReplaceAll(old, "\t", "    ")
		}
		c = p.edits(r.Tools, old, p.task.new)
		if mistake == cutJSON {
			c.Raw = string(c.Arguments)[:len(c.Arguments)*2/3]
		}
	case intendTest:
		c = p.runs(r.Tools, "bash test.sh")
	default:
		a := modeltest.Text("The test passes.")
		if mistake == resetStream {
			a.Fault = &modeltest.Fault{Kind: modeltest.Truncated}
		}
		return a
	}
	c.ID = fmt.Sprintf("call_%s_%d", intention, p.requests)
	switch mistake {
	case prose:
		return modeltest.Text("I will now make the change.")
	case rateLimit:
		return modeltest.Answer{
			Calls: []modeltest.Call{c}, Fault: &modeltest.Fault{Kind: modeltest.RateLimit, RetryAfterS: 1},
		}
	}
	return modeltest.Calls(c)
}

func (p *intender) reads(tools []string, file string) modeltest.Call {
	path := p.dir + "/" + file
	switch {
	case slices.Contains(tools, "file_editor"):
		return modeltest.Tool("file_editor", map[string]any{"command": "view", "path": path})
	case slices.Contains(tools, "read"):
		return modeltest.Tool("read", map[string]any{"filePath": path})
	case slices.Contains(tools, "view_image") && strings.HasSuffix(file, ".png"):
		return modeltest.Tool("view_image", map[string]any{"path": path})
	}
	return p.runs(tools, "cat "+path)
}

func (p *intender) edits(tools []string, old, text string) modeltest.Call {
	path := p.dir + "/" + p.task.file
	switch {
	case slices.Contains(tools, "file_editor"):
		return modeltest.Tool("file_editor",
			map[string]any{"command": "str_replace", "path": path, "old_str": old, "new_str": text})
	case slices.Contains(tools, "edit"):
		return modeltest.Tool("edit", map[string]any{"filePath": path, "oldString": old, "newString": text})
	}
	patch := "*** Begin Patch\n*** Update File: " + p.task.file + "\n@@\n-" +
		strings.ReplaceAll(old, "\n", "\n-") + "\n+" + strings.ReplaceAll(text, "\n", "\n+") + "\n*** End Patch"
	return p.runs(tools, "apply_patch <<'PATCH'\n"+patch+"\nPATCH")
}

func (p *intender) runs(tools []string, command string) modeltest.Call {
	switch {
	case slices.Contains(tools, "terminal"):
		return modeltest.Tool("terminal", map[string]any{"command": command})
	case slices.Contains(tools, "bash"):
		return modeltest.Tool("bash", map[string]any{"command": command, "description": "run it"})
	}
	return modeltest.Tool("exec_command", map[string]any{"cmd": command})
}

// repeats counts how much of the last prompt this one begins with, as servers order it for their
// caches: tools, instructions, messages.
func (p *intender) repeats(body []byte) {
	var in struct {
		Tools, System, Instructions, Messages, Input json.RawMessage
	}
	if json.Unmarshal(body, &in) != nil {
		return
	}
	list := strings.TrimSuffix(string(in.Messages)+string(in.Input), "]")
	prompt := string(in.Tools) + string(in.System) + string(in.Instructions) + list
	if p.last != "" {
		n := 0
		for n < min(len(p.last), len(prompt)) && p.last[n] == prompt[n] {
			n++
		}
		p.repeated += n
		p.whole += len(p.last)
	}
	p.last = prompt
}
