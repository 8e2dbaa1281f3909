package agentserver

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
)

// TestMessage_WithAnID: a message that is sent again with its id is stored once and runs once, and a
// restarted server knows it, too.
func TestMessage_WithAnID(t *testing.T) {
	dir, runs := t.TempDir(), 0
	count := stepping(nil, func(context.Context, *steps, int) (engine.Outcome, error) {
		runs++
		return engine.Finished, nil
	})
	s := serveAt(t, dir, count)
	s.want(http.StatusCreated, "POST", "/api/conversations", createBody(t, convUID))
	s.settled(convID)
	before, counted := runs, s.want(http.StatusOK, "GET",
		"/api/conversations/"+convUID+"/events/count?kind=MessageEvent&source=user", "")
	const id = "0b9f2c7d-e1a2-4b3f-9c7d-5e6f7a8b9c0d"
	message := `{"content":[{"type":"text","text":"once"}],"run":true,"id":"` + id + `"}`
	s.want(http.StatusOK, "POST", "/api/conversations/"+convUID+"/events", message)
	s.settled(convID)
	s.want(http.StatusOK, "POST", "/api/conversations/"+convUID+"/events",
		strings.Replace(message, id, strings.ReplaceAll(strings.ToUpper(id), "-", ""), 1))
	s.settled(convID)
	s.http.Close()
	s.s.close()
	s = serveAt(t, dir, count)
	s.want(http.StatusOK, "POST", "/api/conversations/"+convUID+"/events", message)
	s.settled(convID)
	if n := s.want(http.StatusOK, "GET", "/api/conversations/"+convUID+"/events/count?kind=MessageEvent&source=user",
		""); number(t, n) != number(t, counted)+1 || runs != before+1 {
		t.Errorf("%s messages after %s, %d runs", n, counted, runs-before)
	}
	s.want(http.StatusOK, "GET", "/api/conversations/"+convUID+"/events/"+id, "")
	s.want(http.StatusUnprocessableEntity, "POST", "/api/conversations/"+convUID+"/events",
		strings.Replace(message, id, "x", 1))
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
