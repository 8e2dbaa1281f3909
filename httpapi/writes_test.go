package httpapi

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// TestIdempotency_LongNames: every allowed user name works with every allowed Idempotency-Key.
func TestIdempotency_LongNames(t *testing.T) {
	for _, name := range []int{1, 52, 53, 62, 63} {
		for _, length := range []int{1, 64, 65, request.MaxIdempotencyKey} {
			t.Run(fmt.Sprint(name, " and ", length), func(t *testing.T) {
				h := newHarness(t)
				user := strings.Repeat("u", name)
				api := h.issue(user, false)
				key := strings.Repeat("k", length)
				for range 2 {
					h.do(api, "POST", settingsPath, `{"llm_api_key":"sk-1"}`, request.HeaderIdempotencyKey, key).want(t, 200)
				}
				if n := h.secrets.written(); n != 1 {
					t.Errorf("%d secrets were written, want 1", n)
				}
				h.do(api, "POST", settingsPath, `{"language":"en"}`, request.HeaderIdempotencyKey, key).want(t, 422)
				h.do(api, "POST", settingsPath, `{"language":"en"}`, request.HeaderIdempotencyKey, key[1:]+"x").want(t, 200)
			})
		}
	}
}

// TestIdempotency_ExpiredRecord: a record older than the promised time is not found.
func TestIdempotency_ExpiredRecord(t *testing.T) {
	h := newHarness(t)
	old := fsm.NewCommand("idem:alice:k", time.Now().Add(-fsm.ClientResultTTL-time.Minute), "alice",
		&fsm.SettingsPutBody{})
	old.Fingerprint = "another request"
	if _, err := h.cluster.Propose(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	h.do(h.alice, "POST", settingsPath, `{"language":"en"}`, request.HeaderIdempotencyKey, "k").want(t, 200)
	if s := h.cluster.store.View().Settings("alice"); decode.OrZero(s.Values.Language) != "en" {
		t.Error("nothing was stored")
	}
}

// TestSettings_KeepsAProvidersHost: settings without a provider's host do not send its token to
// another host.
func TestSettings_KeepsAProvidersHost(t *testing.T) {
	for name, entry := range map[string]string{
		"nothing": `{}`, "null": `{"host":null,"token":null}`, "blank": `{"host":" "}`, "a user": `{"user_id":"7"}`,
		"another token": `{"token":"ghp_2"}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t).raised()
			h.do(h.alice, "POST", providersPath,
				`{"provider_tokens":{"github":{"token":"ghp_1","host":"git.example.org"}}}`).want(t, 200)
			h.do(h.alice, "POST", settingsPath, `{"secrets_store":{"provider_tokens":{"github":`+entry+`}}}`).want(t, 200)
			if got := decode.OrZero(providersOf(t, h, "alice")[fsm.ProviderGitHub].Host); got != "git.example.org" {
				t.Errorf("the token now goes to %q, want git.example.org", got)
			}
		})
	}
	t.Run("another host", func(t *testing.T) {
		h := newHarness(t).raised()
		h.do(h.alice, "POST", providersPath,
			`{"provider_tokens":{"github":{"token":"ghp_1","host":"git.example.org"}}}`).want(t, 200)
		h.do(h.alice, "POST", settingsPath,
			`{"secrets_store":{"provider_tokens":{"github":{"host":"other.example.org"}}}}`).want(t, 200)
		if got := decode.OrZero(providersOf(t, h, "alice")[fsm.ProviderGitHub].Host); got != "other.example.org" {
			t.Errorf("the token goes to %q", got)
		}
	})
}

// TestSettings_VerifiesTokens: every request that stores a git token verifies it.
func TestSettings_VerifiesTokens(t *testing.T) {
	var seen []string
	srv := gitHost(t, &seen)
	h := newHarness(t, verifying(srv)).raised()
	settings := func(want int, entry string) {
		t.Helper()
		before := h.secrets.written()
		h.do(h.alice, "POST", settingsPath, `{"secrets_store":{"provider_tokens":{"github":`+entry+`}}}`).want(t, want)
		if wrote := h.secrets.written() - before; want != 200 && wrote != 0 {
			t.Errorf("%s: %d secrets were written", entry, wrote)
		}
	}
	settings(401, `{"token":"bad","host":"`+srv.URL+`"}`)
	settings(200, `{"token":"good","host":"`+srv.URL+`"}`)
	// The stored token is checked at its new host.
	asked := len(seen)
	settings(200, `{"user_id":"7"}`)
	if len(seen) != asked {
		t.Error("a token that stays where it is was tried again")
	}
	settings(401, `{"token":"bad"}`)
	if len(seen) == asked {
		t.Error("a token without a host was not tried at the stored one")
	}
}

// TestSettings_RefusedLeavesNoSecrets: refused settings leave nothing in the secret store.
func TestSettings_RefusedLeavesNoSecrets(t *testing.T) {
	h := newHarness(t).raised()
	secrets := func(from, to int) string {
		var list []string
		for i := from; i < to; i++ {
			list = append(list, sprint(`"s%d":{"secret":"x"}`, i))
		}
		return `{"secrets_store":{"custom_secrets":{` + strings.Join(list, ",") + `}}}`
	}
	h.do(h.alice, "POST", settingsPath, secrets(0, 600)).want(t, 200)
	before := h.secrets.written()
	h.do(h.alice, "POST", settingsPath, secrets(500, 1100)).want(t, 422)
	if n := h.secrets.written() - before; n != 0 {
		t.Errorf("a refused request left %d secrets", n)
	}
	h.do(h.alice, "POST", settingsPath, secrets(400, 1000)).want(t, 200)
}

// TestSpecSearch_TokenOfASpecThatIsGone: a page starts after the previous one even if its last item
// is gone.
func TestSpecSearch_TokenOfASpecThatIsGone(t *testing.T) {
	h := newHarness(t)
	specs := make([]fsm.Spec, 5)
	for i := range specs {
		specs[i] = fsm.Spec{ID: sprint("spec-%d", i), Template: fsm.Template{
			Driver: fsm.DriverRawExec, Isolation: fsm.IsolationNone, Command: "/bin/agent", CPU: 1, Memory: 1,
			Ports: map[string]int{
				fsm.PortAgentServer: 0,
			},
		}}
	}
	h.apply("", &fsm.SpecApplyBody{Specs: specs})
	page := func(token string) ([]string, string) {
		t.Helper()
		var p struct {
			Items []struct{ ID string }
			Next  *string `json:"next_page_id"`
		}
		h.do(h.alice, "GET", pathSpecs+"/search?limit=2&page_id="+token, "").want(t, 200).json(t, &p)
		var ids []string
		for _, one := range p.Items {
			ids = append(ids, one.ID)
		}
		return ids, decode.OrZero(p.Next)
	}
	_, token := page("")
	h.apply("", &fsm.SpecDeleteBody{ID: "spec-1"})
	got, token := page(token)
	if want := []string{"spec-2", "spec-3"}; !slices.Equal(got, want) {
		t.Fatalf("the second page is %v, want %v", got, want)
	}
	h.apply("", &fsm.SpecDeleteBody{ID: "spec-4"})
	if got, next := page(token); len(got) != 0 || next != "" {
		t.Errorf("the third page is %v, %q", got, next)
	}
	for _, junk := range []string{"x", "c3BlYy0x", strings.Repeat("A", 2000), "%2Fjunk%21"} {
		if got, _ := page(junk); !slices.Equal(got, []string{"spec-0", "spec-2"}) {
			t.Errorf("the token %.20q gives %v", junk, got)
		}
	}
}

// TestStart_LargeIntegers: numbers are stored for the agent server as they were sent.
func TestStart_LargeIntegers(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	const n = "9007199254740993"
	body := `{"observability_metadata":{"n":` + n + `,"f":1.10},"plugins":[{"source":"x",` +
		`"parameters":{"a":[{"b":-` + n + `}]}}]}`
	h.do(h.alice, "POST", pathConversations, body).want(t, 200)
	text := h.secrets.last("users/alice/start_tasks/" + h.openTask("alice").ID)["json"]
	for _, want := range []string{`"n":` + n, `"b":-` + n, `"f":1.10`} {
		if !strings.Contains(text, want) {
			t.Errorf("the secrets of the start lack %s: %s", want, text)
		}
	}
}

func TestStart_LongNumbers(t *testing.T) {
	h := newHarness(t).withSpec().withSettings()
	long := strings.Repeat("1", maxNumber+1)
	for _, body := range []string{
		`{"observability_metadata":{"n":` + long + `}}`,
		`{"plugins":[{"source":"x","parameters":{"a":[{"b":` + long + `}]}}]}`,
	} {
		h.do(h.alice, "POST", pathConversations, body).want(t, 422)
		h.do(h.alice, "POST", pathConversations, strings.ReplaceAll(body, long, long[1:])).want(t, 200)
	}
}

// TestV0Start_IDComesBackAsSent: the response has the id in the form that the client chose.
func TestV0Start_IDComesBackAsSent(t *testing.T) {
	for _, id := range []string{
		uuid.NewString(), strings.ToUpper(uuid.NewString()), newHexID(), strings.ToUpper(newHexID()), "my-conversation",
		"{" + uuid.NewString() + "}",
	} {
		h := newHarness(t).withSpec().withSettings()
		for range 2 { // created, then joined
			var got struct {
				ID string `json:"conversation_id"`
			}
			h.do(h.alice, "POST", v0Path, sprint(`{"conversation_id":%q}`, id)).want(t, 200).json(t, &got)
			if got.ID != id {
				t.Errorf("%q comes back as %q", id, got.ID)
			}
		}
		if n := h.cluster.store.View().CountStartTasks("alice", fsm.StartTaskFilter{}); n != 1 {
			t.Errorf("%q: %d starts", id, n)
		}
	}
}

// TestOnce_ChecksTheEnvelope: a command that the log refuses writes no secrets.
func TestOnce_ChecksTheEnvelope(t *testing.T) {
	h := newHarness(t)
	r := httptest.NewRequest("POST", "http://example.org"+settingsPath, nil)
	c := &call{Call: request.New(h.server.calls, r, nil), server: h.server}
	c.Caller = request.Caller{User: "Not a user"}
	defer c.Close()
	_, err := c.Once(func() (fsm.Body, request.SecretWrites, error) {
		body := &fsm.SettingsPutBody{}
		var writes request.SecretWrites
		writes.Add("users/x/settings/mcp_config", "json", "{}", &body.MCPConfig)
		return body, writes, nil
	}, func(fsm.Result) (response.Response, error) { return response.OK(struct{}{}) })
	if fsm.CodeOf(err) != fsm.CodeInvalid || h.secrets.written() != 0 {
		t.Errorf("%v, %d secrets were written", err, h.secrets.written())
	}
}
