package agentserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/config"
)

// FuzzInit: a dormant server accepts any configuration, webhooks included, completely or refuses it
// with a 4xx. Afterwards it is never open to the network without a key, and it never shows the
// configuration.
func FuzzInit(f *testing.F) {
	f.Add([]byte(initBody))
	for _, s := range []string{`{}`, `[]`, `null`, ``, `{"session_api_keys":[""]}`,
		`{"session_api_keys":["k"],"webhooks":[null,"CANARY",{"base_url":5}]}`,
		`{"session_api_keys":["k"],"webhooks":{"base_url":"x"}}`, `{"env":{"A":"CANARY","B":1}}`,
		`{"conversations_path":"../../etc","session_api_keys":["k"]}`,
		`{"session_api_keys":null,"max_concurrent_runs":1e999}`, `{"CANARY":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest(http.MethodPost, config.InitPath, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		cfg, ok := config.FromInit(w, r, config.Config{Host: "0.0.0.0", ConversationsPath: "/var/empty", Deferred: true})
		if ok {
			if len(cfg.Keys) == 0 || cfg.Keys[0] == "" || cfg.Deferred {
				t.Fatalf("%q makes a server that is open: %+v", body, cfg)
			}
			if w.Body.Len() > 0 {
				t.Fatalf("%q was taken, and answered %s", body, w.Body)
			}
			return
		}
		if w.Code < 400 || w.Code > 499 || !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%q: %d %s", body, w.Code, w.Body)
		}
		if strings.Contains(w.Body.String(), "CANARY") && !strings.Contains(w.Body.String(), `"loc":`) {
			t.Fatalf("%q: %s", body, w.Body)
		}
	})
}
