package acptest

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The words by which a prompt chooses the turn. Any other prompt is answered with its own text.
const (
	// Work writes done.txt in a tool call, for which it asks for permission.
	Work = "work"
	// Die is killed in the middle of a tool call.
	Die = "die"
	// DieOnce does so unless the file died is there.
	DieOnce = "dieonce"
	// Children starts a process that leaves the agent's group, and goes on for ever.
	Children = "children"
	// Unknown sends updates that no version of the protocol has.
	Unknown = "unknown"
	// Long sends a tool call of 11 MiB.
	Long = "long"
	// TooLong sends a line that can't be shortened.
	TooLong = "toolong"
	// Twice makes the same request for permission twice, and one for another session.
	Twice = "twice"
	// Hang makes the file begun in a tool call, which goes on until it is canceled.
	Hang = "hang"
	// Late ends its turn long after it was canceled, with more text.
	Late = "late"
	// Deaf does not end its turn.
	Deaf = "deaf"
	// Stop ends the turn with the reason that is its second word.
	Stop = "stop"
	// Fail ends the turn with an error, whose code is its second word.
	Fail = "fail"
)

// prompt does one turn.
func (a *agent) prompt(m message, session string, stop <-chan struct{}) {
	var p struct {
		Prompt []struct{ Text string }
	}
	if json.Unmarshal(m.Params, &p) != nil || len(p.Prompt) == 0 {
		a.refuse(m, -32602, "Invalid params")
		return
	}
	t := &turn{a: a, m: m, session: session, stop: stop}
	text := p.Prompt[len(p.Prompt)-1].Text
	t.do(strings.Fields(text[strings.LastIndex(text, "\n")+1:] + " ."))
}

type turn struct {
	a       *agent
	m       message
	session string
	stop    <-chan struct{}
}

func (t *turn) do(words []string) {
	t.a.noise()
	switch words[0] {
	case Work:
		t.work()
	case Die, DieOnce:
		t.die(words[0])
	case Children:
		_ = exec.Command("setsid", "sleep", "1000").Start() // a test looks for it
		t.call("tool_call", "c1", "in_progress", nil)
		select {}
	case Unknown:
		t.unknown()
	case Long:
		t.call("tool_call", "c1", "in_progress", nil)
		t.call("tool_call_update", "c1", "completed",
			map[string]any{"text": strings.Repeat("0123456789é", 1<<20), "after": "kept"})
		t.say("Long.")
		t.end("end_turn")
	case TooLong:
		t.a.send(message{Method: "session/update", Params: json.RawMessage("[" + strings.Repeat("1,", 6<<20) + "1]")})
		select {}
	case Twice:
		t.twice()
	case Hang:
		t.call("tool_call", "c1", "in_progress", nil)
		_ = os.WriteFile("begun", nil, 0o600) // a test looks for it
		<-t.stop
		t.end("cancelled")
	case Late:
		t.say("early")
		<-t.stop
		time.Sleep(300 * time.Millisecond)
		t.say("late")
		// In one write: a client can't tell the turn of an update that comes after another answer.
		t.a.send(t.ended("cancelled"), t.said("too late"))
	case Deaf:
		t.say("deaf")
		select {}
	case Stop:
		t.say("Said.")
		t.end(words[1])
	case Fail:
		code, _ := strconv.Atoi(words[1])
		t.a.refuse(t.m, code, "It failed.")
	default:
		t.say("You said: " + strings.Join(words[:len(words)-1], " "))
		t.end("end_turn")
	}
}

// work writes a file if it may.
func (t *turn) work() {
	t.update("agent_thought_chunk", map[string]any{"content": map[string]string{"type": "text", "text": "I write."}})
	t.call("tool_call", "c1", "pending", nil)
	if !t.permitted(t.ask(t.session, "c1")) {
		t.call("tool_call_update", "c1", "failed", nil)
		t.end("end_turn")
		return
	}
	t.call("tool_call_update", "c1", "in_progress", nil)
	status := "completed"
	if os.WriteFile("done.txt", []byte("done\n"), 0o600) != nil {
		status = "failed"
	}
	t.call("tool_call_update", "c1", status, map[string]any{"output": "written"})
	t.say("It is ")
	t.say("written.")
	t.end("end_turn")
}

func (t *turn) die(word string) {
	if _, err := os.Stat("died"); word == DieOnce && err == nil {
		t.say("Alive.")
		t.end("end_turn")
		return
	}
	_ = os.WriteFile("died", nil, 0o600)
	t.call("tool_call", "c1", "in_progress", nil)
	t.say("half an ans")
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (t *turn) unknown() {
	t.update("plan_of_the_future", map[string]any{"steps": 3})
	t.update("user_message_chunk", map[string]any{"content": map[string]string{"type": "text", "text": "not the user"}})
	for _, raw := range []string{`{}`, `null`, `7`, `{"sessionUpdate":7}`, `{"sessionUpdate":"tool_call","toolCallId":7}`,
		`{"sessionUpdate":"tool_call"}`,
		`{"sessionUpdate":"agent_message_chunk","content":[1]}`, `{"sessionUpdate":"agent_message_chunk"}`} {
		t.a.send(message{
			Method: "session/update",
			Params: json.RawMessage(`{"sessionId":"` + t.session + `","update":` + raw + `}`),
		})
	}
	t.a.send(message{
		Method: "session/update",
		Params: json.RawMessage(`{"sessionId":"another","update":{"sessionUpdate":"agent_message_chunk",` +
			`"content":{"type":"text","text":"of another session"}}}`),
	})
	t.say("Known.")
	t.end("end_turn")
}

func (t *turn) twice() {
	t.call("tool_call", "c1", "pending", nil)
	first, second, other := t.ask(t.session, "c1"), t.ask(t.session, "c1"), t.ask("another", "c9")
	text := "other " + strconv.FormatBool(t.permitted(other))
	text += ", first " + strconv.FormatBool(t.permitted(first)) + ", second " + strconv.FormatBool(t.permitted(second))
	t.call("tool_call_update", "c1", "completed", nil)
	t.say(text)
	t.end("end_turn")
}

// ask asks for permission. The channel gets the client's line.
func (t *turn) ask(session, call string) <-chan json.RawMessage {
	answer := make(chan json.RawMessage, 1)
	t.a.mu.Lock()
	t.a.asked++
	id := strconv.Itoa(1000 + t.a.asked)
	t.a.answers[id] = answer
	t.a.mu.Unlock()
	params, _ := json.Marshal(map[string]any{"sessionId": session, "toolCall": map[string]any{
		"toolCallId": call,
		"title":      t.a.title,
	},
		"options": []map[string]string{{"optionId": "always", "kind": "allow_always", "name": "Always"},
			{
				"optionId": "once",
				"kind":     "allow_once",
				"name":     "Once",
			}, {"optionId": "no", "kind": "reject_once", "name": "No"}}})
	t.a.send(message{ID: json.RawMessage(id), Method: "session/request_permission", Params: params})
	return answer
}

// permitted waits for an answer.
func (t *turn) permitted(answer <-chan json.RawMessage) bool {
	var m struct {
		Result struct {
			Outcome struct {
				OptionID string `json:"optionId"`
			}
		}
	}
	return json.Unmarshal(<-answer, &m) == nil && m.Result.Outcome.OptionID == "once"
}

func (t *turn) say(text string) { t.a.send(t.said(text)) }

func (t *turn) said(text string) message {
	return t.updated("agent_message_chunk", map[string]any{"content": map[string]string{"type": "text", "text": text}})
}

func (t *turn) call(kind, id, status string, output any) {
	members := map[string]any{"toolCallId": id, "title": t.a.title, "kind": "edit", "status": status}
	if output != nil {
		members["rawOutput"] = output
	}
	t.update(kind, members)
}

func (t *turn) update(kind string, members map[string]any) { t.a.send(t.updated(kind, members)) }

func (t *turn) updated(kind string, members map[string]any) message {
	members["sessionUpdate"] = kind
	params, err := json.Marshal(map[string]any{"sessionId": t.session, "update": members})
	if err != nil {
		panic(err) // its own types encode
	}
	return message{Method: "session/update", Params: params}
}

func (t *turn) end(reason string) { t.a.send(t.ended(reason)) }

func (t *turn) ended(reason string) message {
	return message{
		ID: t.m.ID,
		Result: map[string]any{
			"stopReason": reason,
			"usage":      map[string]int{"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
		},
	}
}
