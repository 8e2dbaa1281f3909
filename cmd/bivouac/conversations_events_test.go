package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestStoredEvents_ForgedOnesAreShown as far as they can be read, and end nothing.
func TestStoredEvents_ForgedOnesAreShown(t *testing.T) {
	t.Parallel()
	var printed strings.Builder
	s := storedEvents{p: &program{stdout: &printed}}
	for _, forged := range []string{
		`{"kind":"MessageEvent","source":"agent","timestamp":"t1","llm_message":5}`,
		`{"kind":7,"source":"agent","timestamp":"t2"}`, `{"kind":"ActionEvent","source":{},"timestamp":"t3","action":[]}`,
		`{"kind":"MessageEvent","source":"user","timestamp":"t4","llm_message":{"content":"text"}}`, `[]`,
	} {
		if err := s.print(json.RawMessage(forged)); err != nil {
			t.Errorf("%s: %v", forged, err)
		}
	}
	for _, want := range []string{"t1  agent  MessageEvent", "t2  agent", "t3", "t4  user  MessageEvent"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is not in\n%s", want, &printed)
		}
	}
}
