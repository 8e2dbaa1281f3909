package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRunbook_ListsPrintsAndKnowsNoOther(t *testing.T) {
	code, list, _ := runCommand(t, nil, "runbook")
	if code != exitOK || !strings.HasPrefix(list, "NAME ") || !strings.Contains(list, "\ndisk ") {
		t.Errorf("exit %d:\n%s", code, list)
	}
	if code, page, _ := runCommand(t, nil, "runbook", "disk"); code != exitOK || !strings.HasPrefix(page, "# ") {
		t.Errorf("exit %d:\n%.200s", code, page)
	}

	var entries []struct{ Name, Title, Text string }
	code, text, _ := runCommand(t, nil, "runbook", "--json")
	if err := json.Unmarshal([]byte(text), &entries); code != exitOK || err != nil ||
		len(entries) != strings.Count(list, "\n")-1 {
		t.Errorf("exit %d, %v: %d entries for\n%s", code, err, len(entries), list)
	}
	entries = append(entries[:0], entries[0])
	code, text, _ = runCommand(t, nil, "runbook", "disk", "--json")
	if err := json.Unmarshal([]byte(text), &entries[0]); code != exitOK || err != nil || entries[0].Name != "disk" ||
		entries[0].Text == "" {
		t.Errorf("exit %d, %v: %.200s", code, err, text)
	}
}
