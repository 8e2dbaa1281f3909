package agentserver

import (
	"net/http"
	"strings"
	"testing"
)

// A command's own environment is neither shown nor logged.
func TestBash_Env(t *testing.T) {
	s := newServer(t)
	code, stdout, _ := s.run(`{"command":"echo $GREETING; tr '\\0' ' ' </proc/$$/cmdline","env":{"GREETING":"ENVCANARY"}}`)
	if code != 0 || strings.Count(stdout, "ENVCANARY") != 1 {
		t.Errorf("exit code %d, %q", code, stdout)
	}
	_, started := s.send(http.MethodPost, "/api/bash/start_bash_command", `{"command":"true","env":{"A":"ENVCANARY"}}`)
	status, refused := s.send(http.MethodPost, "/api/bash/start_bash_command",
		`{"command":"true","env":{"A=B":"ENVCANARY"}}`)
	if status != http.StatusUnprocessableEntity {
		t.Errorf("a name that is none: %d", status)
	}
	for what, text := range map[string]string{"answer": started, "refusal": refused, "log": s.logs.String()} {
		if strings.Contains(text, "ENVCANARY") {
			t.Errorf("the %s shows the value: %s", what, text)
		}
	}
	if code, stdout, _ := s.run(`{"command":"echo [$OH_SECRET_KEY]","env":{"OH_SECRET_KEY":"x"}}`); code != 0 ||
		stdout != "[]\n" {
		t.Errorf("a variable of keys: %d %q", code, stdout)
	}
}
