package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The API only says "Not Found". The command names what it requested.
func TestCommands_NameWhatIsNotThere(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"detail":"Not Found"}`))
	}))
	defer server.Close()
	env := map[string]string{"BIVOUAC_ADDR": server.URL, "BIVOUAC_API_KEY": "bvk_x"}
	for args, want := range map[string]string{
		"keys enable 99":                             "there is no operator/keys/99/enable",
		"operator orphans delete job nope --yes":     "there is no operator/orphans/job/nope",
		"operator orphans delete lost nope --yes":    "there is no operator/orphans/lost/nope",
		"operator orphans restore nope":              "there is no operator/orphans/lost/nope/restore",
		"sandboxes show nope":                        "there is no operator/sandboxes/nope",
		"sandboxes rotate-key nope":                  "there is no operator/sandboxes/nope/rotate-key",
		"conversations delete nope --user ada --yes": "there is no operator/app-conversations/nope",
		"operator accept-workspace nope --yes":       "there is no operator/sandboxes/nope/accept-workspace",
	} {
		code, _, stderr := runCommand(t, env, strings.Fields(args)...)
		if code != exitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
}
