package httpapi

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// postBodies are requests with side effects in the secret store, where the route has any.
func postBodies(sandbox, conversation string) map[string]struct{ path, body, other string } {
	ofAlice := strings.ReplaceAll(pathOrgProfiles, ":org_id", "alice")
	return map[string]struct{ path, body, other string }{
		"settings.put":                {settingsPath, `{"llm_api_key":"a"}`, `{"llm_api_key":"b"}`},
		"conversation.v0_start":       {v0Path, `{"mcp_config":{}}`, `{}`},
		"providers.replace":           {providersPath, `{"provider_tokens":{"github":{"token":"a"}}}`, `{}`},
		"conversation.start":          {pathConversations, `{"secrets":{"A":"b"}}`, `{}`},
		"sandbox.create":              {pathSandboxes, ``, `{}`},
		"sandbox.pause":               {pathSandboxes + "/" + sandbox + "/pause", ``, `{}`},
		"sandbox.resume":              {pathSandboxes + "/" + sandbox + "/resume", ``, `{}`},
		"sandbox.rotate_key":          {pathSandboxes + "/" + sandbox + "/rotate-key", ``, `{}`},
		"sandbox.operator_rotate_key": {pathOperator + "/sandboxes/" + sandbox + "/rotate-key", ``, `{}`},
		"sandbox.share": {
			pathSandboxes + "/" + sandbox + "/ports/VSCODE/share",
			`{}`,
			`{"expires_at":null}`,
		},
		"sandbox.accept_workspace":          {pathSandboxes + "/" + sandbox + "/accept-workspace", ``, `{}`},
		"sandbox.operator_pause":            {pathOperator + "/sandboxes/" + sandbox + "/pause", ``, `{}`},
		"sandbox.operator_resume":           {pathOperator + "/sandboxes/" + sandbox + "/resume", ``, `{}`},
		"sandbox.operator_accept_workspace": {pathOperator + "/sandboxes/" + sandbox + "/accept-workspace", ``, `{}`},
		"api_key.create": {
			pathOperator + "/keys",
			`{"user":"carol","name":"x"}`,
			`{"user":"carol","name":"y"}`,
		},
		"own_key.create":  {"/api/keys", `{"name":"x"}`, `{"name":"y"}`},
		"api_key.enable":  {pathOperator + "/keys/1/enable", ``, `{}`},
		"api_key.disable": {pathOperator + "/keys/2/disable", ``, `{}`},
		"user.disable":    {pathOperator + "/users/bob/disable", ``, `{}`},
		"user.enable":     {pathOperator + "/users/bob/enable", ``, `{}`},
		"conversation.send_message": {pathConversations + "/" + conversation + "/send-message",
			`{"content":[{"text":"a"}]}`, `{"content":[{"text":"b"}]}`},
		"conversation.pending_message": {strings.ReplaceAll(pathPending, ":conversation_id", "task-"+startingTask),
			`{"content":[{"text":"a"}]}`, `{"content":[{"text":"b"}]}`},
		"start_task.setup": {strings.ReplaceAll(pathTaskSetup, ":task_id", askingTask),
			`{"hash":"` + askingHash + `","accept":true}`, `{"hash":"` + askingHash + `","accept":false}`},
		"conversation.switch_acp_model": {
			pathConversations + "/" + conversation + "/switch_acp_model",
			`{"model":"a"}`,
			`{"model":"b"}`,
		},
		"conversation.switch_llm": {pathConversations + "/" + conversation + "/switch_llm", `{}`, `{"llm_model":null}`},
		"conversation.switch_profile": {
			pathConversations + "/" + conversation + "/switch_profile", `{"profile_name":"fast"}`, `{"profile_name":"x"}`,
		},
		"settings_v1.save":       {pathSettingsV1, `{"llm_api_key":"a"}`, `{"llm_api_key":"b"}`},
		"agent_profile.save":     {pathAgentProfiles + "/mine", `{"llm_profile_ref":"fast"}`, `{"llm_profile_ref":"slow"}`},
		"agent_profile.rename":   {pathAgentProfiles + "/mine/rename", `{"new_name":"a"}`, `{"new_name":"b"}`},
		"agent_profile.activate": {pathAgentProfiles + "/p2/activate", ``, `{}`},
		"llm_profile.save": {
			pathLLMProfiles + "/fast", `{"llm":{"model":"m","api_key":"a"}}`, `{"llm":{"model":"m","api_key":"b"}}`,
		},
		"llm_profile.rename":   {pathLLMProfiles + "/fast/rename", `{"new_name":"a"}`, `{"new_name":"b"}`},
		"llm_profile.activate": {pathLLMProfiles + "/fast/activate", ``, `{}`},
		"organization_profile.save": {
			ofAlice + "/fast", `{"llm":{"model":"m","api_key":"a"}}`, `{"llm":{"model":"m","api_key":"b"}}`,
		},
		"organization_profile.rename":   {ofAlice + "/fast/rename", `{"new_name":"a"}`, `{"new_name":"b"}`},
		"organization_profile.activate": {ofAlice + "/fast/activate", ``, `{}`},
		"secret.create":                 {pathSecrets, `{"name":"A","value":"a"}`, `{"name":"A","value":"b"}`},
		"client.drain":                  {pathOperator + "/clients/ready/drain", ``, `{}`},
		"client.lost":                   {pathOperator + "/clients/down/lost", ``, `{}`},
		"client.enable":                 {pathOperator + "/clients/ready/enable", ``, `{}`},
		"orphan.restore":                {pathOperator + "/orphans/lost/v-1/restore", ``, `{}`},
		"hold.release":                  {pathOperator + "/hold/release", `{}`, `{"index":1}`},
		"spec.pool":                     {pathOperator + "/specs/small/pool", `{"size":1}`, `{"size":2}`},
		"spec.apply":                    {pathOperator + "/specs", `{"specs":[]}`, `{"specs":[],"replace":true}`},
	}
}

func TestIdempotency_EveryPost(t *testing.T) {
	for _, r := range routes() {
		if r.method != "POST" || r.upload || r.access == sandboxKey {
			continue // a restore replaces the recorded keys; agent servers send none
		}
		if strings.HasPrefix(r.name, "session.") || strings.HasPrefix(r.name, "device.") {
			continue // tokens, codes and keys are kept nowhere, so no repetition gets one again
		}
		if r.name == "cloud_proxy.call" {
			continue // the agent server knows whether a call may be repeated
		}
		t.Run(r.name, func(t *testing.T) {
			h := newHarness(t, func(c *Config) { c.Operator.Clients = twoClients{} }).withSpec().withSettings()
			h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.ProtocolVersion})
			if r.name != "client.drain" { // a hold refuses it
				h.apply("", &fsm.HoldBeginBody{Findings: []fsm.Finding{{Kind: fsm.FindingRestored, Detail: "a test"}}})
			}
			sb := h.createSandbox(h.alice)
			h.observe(sb, running())
			h.questioned(r, sb)
			h.starting()
			if r.name == "orphan.restore" {
				h.lost(h.createSandbox(h.alice))
			}
			req, known := postBodies(sb, h.conversation("alice", sb, speaksACP))[r.name]
			if !known {
				t.Fatal("this POST has no idempotency test")
			}
			key := h.alice
			if r.access == operator {
				key = h.root
			}
			first := h.do(key, "POST", req.path, req.body, "Idempotency-Key", "k-1")
			if first.status/100 != 2 {
				t.Fatalf("status %d: %s", first.status, first.body)
			}
			writes, reads := h.secrets.written(), h.secrets.reads
			commands, messages := h.cluster.count(), len(h.agents.sent())
			second := first.status
			if r.name == "api_key.create" || r.name == "own_key.create" {
				second = http.StatusConflict // nobody has the value any more: TestAPIKeyCreate_Repeated
			}
			again := h.do(key, "POST", req.path, req.body, "Idempotency-Key", "k-1").want(t, second)
			if second == first.status && string(again.body) != string(first.body) {
				t.Fatalf("answers differ:\n%s\n%s", first.body, again.body)
			}
			if r.name == "sandbox.share" {
				reads++ // the token is stored nowhere: it derives from the sandbox's key
			}
			if h.secrets.written() != writes || h.secrets.reads != reads || h.cluster.count() != commands ||
				len(h.agents.sent()) != messages {
				t.Fatal("the repeated request had side effects")
			}
			got := h.do(key, "POST", req.path, req.other, "Idempotency-Key", "k-1").problems(t)
			if len(got) != 1 || strings.Join(got[0].Loc, ".") != "header.Idempotency-Key" {
				t.Fatalf("other body: %v", summary(got))
			}
			h.do(key, "POST", req.path+"?x=1", req.body, "Idempotency-Key", "k-1").want(t, 422)
			if h.secrets.written() != writes {
				t.Fatal("a mismatch wrote secrets")
			}
			if r.name == "sandbox.share" {
				return
			}
			// The recorded result needs no secret store.
			h.secrets.set(func(s *fakeSecrets) { s.err = errStoreAway })
			h.do(key, "POST", req.path, req.body, "Idempotency-Key", "k-1").want(t, second)
		})
	}
}

func TestIdempotency_RecordedErrorIsRepeated(t *testing.T) {
	h := newHarness(t).withSpec()
	path := pathSandboxes + "/unknown/pause"
	first := h.do(h.alice, "POST", path, "", "Idempotency-Key", "e").want(t, 404)
	commands := h.cluster.count()
	again := h.do(h.alice, "POST", path, "", "Idempotency-Key", "e").want(t, 404)
	if string(first.body) != string(again.body) || h.cluster.count() != commands {
		t.Fatalf("%s, then %s", first.body, again.body)
	}
}

func TestIdempotency_KeysAreTheUsers(t *testing.T) {
	h := newHarness(t).withSpec()
	a := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "k").want(t, 200)
	b := h.do(h.bob, "POST", pathSandboxes, "", "Idempotency-Key", "k").want(t, 200)
	if string(a.body) == string(b.body) {
		t.Fatal("bob got alice's answer")
	}
}

func TestIdempotency_ConcurrentTwins(t *testing.T) {
	h := newHarness(t).withSpec()
	const twins = 8
	bodies := make([]string, twins)
	var wg sync.WaitGroup
	for i := range twins {
		wg.Go(func() {
			bodies[i] = string(h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "twin").want(t, 200).body)
		})
	}
	wg.Wait()
	for _, b := range bodies {
		if b != bodies[0] {
			t.Fatalf("answers differ:\n%s\n%s", bodies[0], b)
		}
	}
	var p struct{ Items []struct{ ID string } }
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").json(t, &p)
	if len(p.Items) != 1 {
		t.Fatalf("%d sandboxes", len(p.Items))
	}
}

func TestIdempotency_RepeatAfterALostAnswer(t *testing.T) {
	h := newHarness(t).withSpec()
	h.cluster.set(func(c *fakeCluster) { c.lostErr = fsm.Errorf(fsm.CodeOutcomeUnknown, "the leader went away") })
	res := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "lost").want(t, 503)
	if !strings.Contains(string(res.body), "unknown") || res.header.Get("Retry-After") == "" {
		t.Fatalf("body %s", res.body)
	}
	h.cluster.set(func(c *fakeCluster) { c.lostErr = nil })
	h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "lost").want(t, 200)
	var p struct{ Items []struct{ ID string } }
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "").json(t, &p)
	if len(p.Items) != 1 {
		t.Fatalf("%d sandboxes", len(p.Items))
	}
}

func TestIdempotency_KeyBounds(t *testing.T) {
	h := newHarness(t).withSpec()
	for _, key := range []string{"a b", strings.Repeat("x", 256), "é", "tab\there"} {
		got := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", key).problems(t)
		if strings.Join(got[0].Loc, ".") != "header.Idempotency-Key" {
			t.Errorf("%q: %v", key, summary(got))
		}
	}
	h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", "").want(t, 422)
	a := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", strings.Repeat("x", 255)).want(t, 200)
	b := h.do(h.alice, "POST", pathSandboxes, "", "Idempotency-Key", strings.Repeat("x", 254)+"y").want(t, 200)
	if string(a.body) == string(b.body) {
		t.Fatal("long keys are confused")
	}
	// Other methods ignore the header.
	h.do(h.alice, "GET", "/api/v1/sandboxes/search", "", "Idempotency-Key", "a b").want(t, 200)
}
