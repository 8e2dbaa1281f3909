package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// TestFullState_ReplacedSecretsCount: whoever replaces one secret again and again meets the limit, and
// from then on no secret is written.
func TestFullState_ReplacedSecretsCount(t *testing.T) {
	t.Parallel()
	h := newHarness(t).withSpec().withSettings().raised().limited(fsm.Installation{
		PerUser: fsm.Limits{StateBytes: fsm.MinStateBytes},
	})
	long, before := strings.Repeat("x", 60<<10), h.secrets.written()
	const requests = 200
	refused := 0
	for range requests {
		switch res := h.do(h.alice, "POST", settingsPath, fmt.Sprintf(`{"llm_api_key":%q}`, long)); res.status {
		case http.StatusTooManyRequests:
			refused++
		case http.StatusOK:
		default:
			t.Fatalf("%d %s", res.status, res.body)
		}
	}
	if n := h.secrets.written() - before; refused == 0 || n != requests-refused || n*len(long) > fsm.MinStateBytes {
		t.Errorf("%d of %d requests refused, %d secrets of 60 KiB written with a limit of %d bytes", refused, requests, n,
			fsm.MinStateBytes)
	}
}

// TestFullState_ARefusedPostWritesNoSecret: whatever a POST brings, if the state has no room for it no
// secret was written.
func TestFullState_ARefusedPostWritesNoSecret(t *testing.T) {
	t.Parallel()
	h := newHarness(t).withSpec().withSettings().raised().limited(fsm.Installation{
		PerUser: fsm.Limits{StateBytes: fsm.MinStateBytes},
	})
	for i, description := 0, strings.Repeat("d", 4000); ; i++ {
		body := fmt.Sprintf(`{"secrets_store":{"custom_secrets":{"s%d":{"secret":"a","description":%q}}}}`, i, description)
		if h.do(h.alice, "POST", settingsPath, body).status != http.StatusTooManyRequests {
			continue
		}
		if description == "" {
			break
		}
		description = ""
	}
	long := strings.Repeat("x", 60<<10)
	for name, one := range map[string]struct{ path, body string }{
		"settings.put": {
			settingsPath,
			fmt.Sprintf(`{"llm_api_key":%q,"llm_model":%q}`, long, strings.Repeat("m", 4000)),
		},
		"settings.put, mcp": {
			settingsPath,
			fmt.Sprintf(`{"mcp_config":{"shttp_servers":[{"url":"https://x.example/","api_key":%q}]},"llm_model":"m"}`, long),
		},
		"conversation.start":    {pathConversations, fmt.Sprintf(`{"secrets":{"A":%q}}`, long)},
		"conversation.v0_start": {v0Path, `{"mcp_config":{"stdio_servers":[]}}`},
		"sandbox.create":        {pathSandboxes, ``},
	} {
		for _, key := range []string{"", "k-" + strings.Fields(name)[0]} {
			before := h.secrets.written()
			var headers []string
			if key != "" {
				headers = []string{"Idempotency-Key", key}
			}
			res := h.do(h.alice, "POST", one.path, one.body, headers...)
			if res.status != http.StatusTooManyRequests {
				t.Errorf("%s: %d %s", name, res.status, res.body)
			}
			if n := h.secrets.written() - before; n != 0 {
				t.Errorf("%s: refused after %d secrets were written", name, n)
			}
		}
	}
}
