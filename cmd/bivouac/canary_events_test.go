package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster/eventstore"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// talk is a conversation whose events hold canaries.
type talk struct {
	sandbox, conversation string
	// event is the id of a tool's result, as it is stored, readable and without dashes.
	event string
}

// untitled is longer than a title, which is readable by design: the beginning of a user's first message.
const untitled = "Please look at what stands behind the first fifty characters: "

// converse has the built-in agent call a tool. What its user says, what it answers, the arguments of the
// tool and its result are canaries. Every node shows them to their owner.
func (s *canarySearch) converse(t *testing.T) {
	t.Helper()
	message, answer := s.c.value("event-message"), s.c.value("event-answer")
	argument, result := s.c.value("event-argument"), s.c.value("event-result")
	// The result as a whole stands in no argument.
	command := fmt.Sprintf("printf 'canary%%s' %s; : %s", strings.TrimPrefix(result, "canary"), argument)
	modelKey := s.c.value("event-model-key")
	model := modeltest.New(t, &modeltest.Script{Key: modelKey, Stories: []*modeltest.Story{
		{When: modeltest.When{User: message, Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": command})), modeltest.Text(answer)}},
		{Answers: []modeltest.Answer{modeltest.Text("A title")}},
	}})
	user := s.through(s.user)
	user.do(t, http.StatusOK, http.MethodPost, "/api/settings", map[string]any{
		"llm_model": "openai/scripted", "llm_base_url": model.BaseURL(), "llm_api_key": modelKey})
	var task startTaskInfo
	user.do(t, http.StatusOK, http.MethodPost, "/api/v1/app-conversations", map[string]any{}).json(t, &task)
	task = user.awaitTask(t, task.ID)
	s.talk = talk{sandbox: *task.SandboxID, conversation: *task.ConversationID}
	sandbox := user.awaitSandbox(t, s.talk.sandbox, "RUNNING")
	s.c.issued(t, keyOfASandbox+" with a model", *sandbox.SessionAPIKey)
	caller{base: sandbox.agentURL(), key: *sandbox.SessionAPIKey}.do(t, http.StatusOK, http.MethodPost,
		"/api/conversations/"+s.talk.conversation+"/events", map[string]any{"role": "user", "run": true,
			"content": []any{map[string]string{"type": "text", "text": untitled + message}}})
	for _, n := range s.nodes {
		eventually(t, n.name+" has the events", func() error {
			return s.shown(caller{base: n.base, key: s.user}, message, answer, argument, result)
		})
	}
}

// shown checks that a node shows texts in the events of the conversation, and keeps a result's id.
func (s *canarySearch) shown(c caller, texts ...string) error {
	a, err := c.try(http.MethodGet, "/api/v1/conversation/"+s.talk.conversation+"/events/search?limit=100", nil)
	if err != nil {
		return err
	}
	leaks := s.leaks(a.body)
	for _, text := range texts {
		if !slices.Contains(leaks, text) {
			return fmt.Errorf("no %s in %s", text, a)
		}
	}
	var page struct{ Items []struct{ ID, Kind string } }
	if err := json.Unmarshal(a.body, &page); err != nil {
		return err
	}
	at := slices.IndexFunc(page.Items, func(e struct{ ID, Kind string }) bool { return e.Kind == "ObservationEvent" })
	if at < 0 {
		return errors.New("no result")
	}
	s.talk.event = strings.ReplaceAll(page.Items[at].ID, "-", "")
	return nil
}

// eventsFiles searches what each node's store of events holds: its files are compressed in blocks.
func (s *canarySearch) eventsFiles(t *testing.T) {
	for _, n := range s.nodes {
		var events int
		var leaks []string
		eventually(t, "a copy of "+n.name+"'s events", func() (err error) {
			dir := filepath.Join(t.TempDir(), "events")
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(n.dir, "data", "events"))); err != nil {
				return err // a file was removed meanwhile
			}
			events, leaks, err = s.storedEvents(dir)
			return err
		})
		s.found(t, n.name+": stored events", events, leaks)
	}
}

// storedEvents searches a copy of a store of events, which must have the conversation's.
func (s *canarySearch) storedEvents(dir string) (events int, leaks []string, err error) {
	store, err := eventstore.Open(dir, eventstore.Options{})
	if err != nil {
		return 0, nil, err
	}
	found := false
	var broken error
	err = store.Heads(func(head *eventstore.Head) bool {
		broken = store.Events(head.Key, 0, false, func(_ uint64, stored []byte) bool {
			events++
			leaks = append(leaks, s.leaks(stored)...)
			found = found || bytes.Contains(stored, []byte(s.talk.event))
			return true
		})
		return broken == nil
	})
	if err = errors.Join(err, broken); err == nil && !found {
		err = fmt.Errorf("the event %s is not among %d", s.talk.event, events)
	}
	return events, leaks, errors.Join(err, store.Close())
}

// debugArchive searches what an operator sends to whoever looks for a fault.
func (s *canarySearch) debugArchive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "debug.tar.gz")
	mustRun(t, nil, "operator", "debug", "--duration", "1s", "--output", file, "--address", s.nodes[1].base,
		"--api-key-file", s.keyFile)
	var leaks []string
	files := unpackDebug(t, file)
	for name, body := range files {
		for _, v := range s.leaks(body) {
			leaks = append(leaks, v+" in "+name)
		}
	}
	s.found(t, "operator debug, files", len(files), leaks)
}
