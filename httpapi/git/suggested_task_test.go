package git

import (
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

func TestTaskPrompt_NamesTheRepository(t *testing.T) {
	for _, kind := range taskTypes() {
		text := taskPrompt(&fsm.SuggestedTask{TaskType: kind, Repo: "octo/app", IssueNumber: 7, Title: "x"})
		if !strings.Contains(text, "octo/app") {
			t.Errorf("%s: %s", kind, text)
		}
	}
}
