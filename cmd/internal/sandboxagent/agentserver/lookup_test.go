package agentserver

import (
	"strings"
	"testing"
)

// A secret that the server would have to fetch is refused, and not dropped.
func TestSecrets_LookupIsRefused(t *testing.T) {
	s := newServer(t)
	lookup := `{"kind":"LookupSecret","url":"http://127.0.0.1:1/secret","headers":{"X-Access-Token":"TOKENCANARY"}}`
	body := strings.Replace(createBody(t, convUID), `"secrets":{"GITHUB_TOKEN"`,
		`"secrets":{"LATER":`+lookup+`,"GITHUB_TOKEN"`, 1)
	text := s.want(422, "POST", "/api/conversations", body)
	if !strings.Contains(text, "send a StaticSecret") || strings.Contains(text, "TOKENCANARY") {
		t.Errorf("the refusal is %s", text)
	}
	s.begun()
	if text := s.want(422, "POST", convPath+"/secrets",
		`{"secrets":{"LATER":`+lookup+`}}`); !strings.Contains(text, "send a StaticSecret") {
		t.Errorf("the refusal is %s", text)
	}
}
