package main

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestDev_Profiles: what one node saves every node uses. The built-in agent of a conversation that
// names an agent profile goes to the server and with the key of its LLM profile, goes to another after
// switch_profile, and one that begins after an activation goes where that profile leads.
func TestDev_Profiles(t *testing.T) {
	t.Parallel()
	r := startDev(t, t.TempDir())
	first, second, third := r.all[0], r.all[1], r.all[2]
	models := map[string]*modeltest.Server{}
	for _, name := range []string{"a", "b"} {
		models[name] = modeltest.New(t, &modeltest.Script{Key: "sk-of-" + name, Stories: []*modeltest.Story{
			{Answers: []modeltest.Answer{modeltest.Text("from " + name)}},
		}})
		first.do(t, http.StatusCreated, http.MethodPost, "/api/v1/settings/profiles/"+name, map[string]any{
			"llm": map[string]any{
				"model": "openai/scripted-" + name, "base_url": models[name].BaseURL(), "api_key": "sk-of-" + name,
			},
		})
	}
	asked := func(name string, before int) {
		t.Helper()
		eventually(t, name+" is asked", func() error {
			if len(models[name].Requests()) <= before {
				return errors.New("it is not")
			}
			return nil
		})
		for _, q := range models[name].Requests() {
			if q.Key != "sk-of-"+name {
				t.Errorf("%s is asked with the key %q", name, q.Key)
			}
		}
	}
	finished := func(id string) {
		t.Helper()
		eventually(t, "the conversation has finished", func() error {
			var rows []struct {
				Status string `json:"execution_status"`
			}
			first.do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations?ids="+id, nil).json(t, &rows)
			if rows[0].Status != "finished" {
				return errors.New(rows[0].Status)
			}
			return nil
		})
	}
	message := map[string]any{"content": []any{map[string]any{"type": "text", "text": "hello"}}}
	start := func(c caller, more map[string]any) string {
		t.Helper()
		body := map[string]any{"initial_message": message}
		for name, value := range more {
			body[name] = value
		}
		task := c.awaitStart(t, body)
		if task.Status != "READY" {
			t.Fatalf("the start is %s: %s", task.Status, task.Detail)
		}
		return task.Conversation
	}

	second.do(t, http.StatusCreated, http.MethodPost, "/api/agent-profiles/mine", map[string]any{"llm_profile_ref": "b"})
	var agent struct{ Profile struct{ ID string } }
	third.do(t, http.StatusOK, http.MethodGet, "/api/agent-profiles/mine", nil).json(t, &agent)
	conversation := start(third, map[string]any{"agent_profile_id": agent.Profile.ID})
	asked("b", 0)
	eventually(t, "the conversation has finished", func() error {
		var rows []struct {
			Status string  `json:"execution_status"`
			Model  *string `json:"llm_model"`
			Agent  *struct {
				ID       string `json:"agent_profile_id"`
				Revision int64  `json:"revision"`
			} `json:"launched_agent_profile"`
		}
		first.do(t, http.StatusOK, http.MethodGet, "/api/v1/app-conversations?ids="+conversation, nil).json(t, &rows)
		if rows[0].Status != "finished" {
			return errors.New(rows[0].Status)
		}
		if rows[0].Model == nil || *rows[0].Model != "openai/scripted-b" {
			return fmt.Errorf("its model is %v", rows[0].Model)
		}
		if rows[0].Agent == nil || rows[0].Agent.ID != agent.Profile.ID || rows[0].Agent.Revision != 0 {
			return fmt.Errorf("its agent profile is %+v", rows[0].Agent)
		}
		return nil
	})
	if n := len(models["a"].Requests()); n > 0 {
		t.Errorf("a was asked %d times", n)
	}

	of := "/api/v1/app-conversations/" + conversation
	second.do(t, http.StatusOK, http.MethodPost, of+"/switch_profile", map[string]any{"profile_name": "a"})
	third.do(t, http.StatusOK, http.MethodPost, of+"/send-message", message)
	asked("a", 0)
	finished(conversation)

	before := len(models["b"].Requests())
	first.do(t, http.StatusOK, http.MethodPost, "/api/v1/settings/profiles/b/activate", map[string]any{})
	again := start(second, nil)
	asked("b", before)
	finished(again) // the nodes finish requests before they stop, and the models go first
}
