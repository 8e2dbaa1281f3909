package httpapi

import (
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
)

// TestStartTaskSetup: a task shows what it asks, and its user alone answers, for exactly these files.
func TestStartTaskSetup(t *testing.T) {
	h := newHarness(t).withSpec()
	h.asking(h.createSandbox(h.alice))
	routeOf := func(task string) string { return strings.Replace(pathTaskSetup, ":task_id", task, 1) }
	route := routeOf(askingTask)
	shown := func() (out string) {
		t.Helper()
		var tasks []struct {
			Detail *string
			Setup  *struct {
				Repository, Hash, Directory string
				Files                       []fsm.SetupFile
				Answer                      *string
				Skipped                     bool
			}
		}
		h.do(h.alice, "GET", pathStartTasks+"?ids="+askingTask, "").want(t, 200).json(t, &tasks)
		s := tasks[0].Setup
		if s == nil || s.Repository != "https://github.com/octo/app.git" || s.Hash != askingHash ||
			s.Directory != "/workspace/project/app" || s.Files[0] != askingFiles[0] {
			t.Fatalf("the task asks %+v", s)
		}
		if tasks[0].Detail != nil {
			out = *tasks[0].Detail
		}
		if s.Answer == nil {
			return "no answer: " + out
		}
		return *s.Answer + ": " + out
	}
	if got := shown(); got != "no answer: " {
		t.Errorf("before an answer: %s", got)
	}
	yes, no := `{"hash":"`+askingHash+`","accept":true}`, `{"hash":"`+askingHash+`","accept":false}`
	for body, want := range map[string]int{
		``: 422, `{}`: 422, `{"accept":true}`: 422,
		`{"hash":"` + askingHash + `"}`:                            422,
		`{"hash":"` + askingHash + `","accept":null}`:              422,
		`{"hash":"` + askingHash + `","accept":true,"all":true}`:   422,
		`{"hash":"` + strings.Repeat("0", 64) + `","accept":true}`: 409,
	} {
		h.do(h.alice, "POST", route, body).want(t, want)
	}
	h.do(h.bob, "POST", route, yes).want(t, 404).is(t, `{"detail":"Start task not found"}`)
	h.do(h.root, "POST", route, yes).want(t, 404)
	h.do(h.alice, "POST", routeOf("x"), yes).want(t, 422)
	if got := shown(); got != "no answer: " {
		t.Errorf("after what is no answer: %s", got)
	}
	h.do(h.alice, "POST", route, yes).want(t, 200).is(t, `{"success":true}`)
	if got := shown(); got != "accepted: " {
		t.Errorf("after the yes: %s", got)
	}
	h.do(h.alice, "POST", routeOf(decode.Dashed(askingTask)), no).want(t, 200)
	h.apply("", &fsm.StartTaskAdvanceBody{ID: askingTask, Status: fsm.StartTaskSettingUpSkills, SetupSkipped: true})
	conversation := h.cluster.store.View().StartTask("alice", askingTask).ConversationID
	h.apply("", &fsm.StartTaskFinishBody{ID: askingTask, Conversation: fsm.Conversation{ID: conversation}})
	want := "declined: The conversation began without the files of https://github.com/octo/app.git that run by " +
		"themselves: .openhands/setup.sh"
	if got := shown(); got != want {
		t.Errorf("after the no: %s", got)
	}
	h.starting()
	h.do(h.alice, "POST", routeOf(startingTask), yes).want(t, 409)
}
