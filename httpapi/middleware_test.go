package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A page of a name that leads to this machine is of the same origin as an API that answers to the name.
func TestServer_AnswersToItsNamesOnly(t *testing.T) {
	ask := func(h *harness, host, path string) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.handler.ServeHTTP(w, r)
		return w.Code
	}
	bound := newHarness(t, func(c *Config) { c.Hosts = []string{"box.example.org"} })
	for _, host := range []string{
		"localhost", "LOCALHOST:8440", "localhost.", "127.0.0.1:8440", "127.9.9.9", "[::1]:8440", "[::1]",
		"agent-x.localhost:8440",
		"box.example.org", "Box.Example.org:8440",
	} {
		if code := ask(bound, host, "/alive"); code != http.StatusOK {
			t.Errorf("%s: %d", host, code)
		}
	}
	for _, host := range []string{
		"",
		"evil.example",
		"evil.example:8440",
		"localhost.evil.example",
		"127.0.0.1.nip.io",
		"0.0.0.0:8440",
		"192.168.1.1",
		"notlocalhost",
		"x@localhost",
		"localhost:x:y",
	} {
		for _, path := range []string{"/alive", "/api/settings", "/sandboxes/x/AGENT_SERVER/", "/llm/v1/models"} {
			if code := ask(bound, host, path); code != http.StatusMisdirectedRequest {
				t.Errorf("%q %s: %d", host, path, code)
			}
		}
	}
	if code := ask(newHarness(t), "any.example.org", "/alive"); code != http.StatusOK {
		t.Errorf("a server without names of its own: %d", code)
	}
}
