package workload

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// TestHear tests the check: it finds a message that is missing or too frequent, on any page.
func TestHear(t *testing.T) {
	var pages [][]string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any = []any{map[string]any{
			"id": "box", "status": "RUNNING", "session_api_key": "k",
			"exposed_urls": []any{map[string]string{"name": "AGENT_SERVER", "url": "http://" + r.Host}},
		}}
		if strings.HasSuffix(r.URL.Path, "/events/search") {
			at := len(r.URL.Query().Get("page_id"))
			items := []any{}
			for _, text := range pages[at] {
				items = append(items,
					map[string]any{"llm_message": map[string]any{"content": []any{map[string]string{"text": text}}}})
			}
			page := map[string]any{"items": items, "next_page_id": nil}
			if at+1 < len(pages) {
				page["next_page_id"] = strings.Repeat("n", at+1)
			}
			answer = page
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	for name, c := range map[string]struct {
		pages [][]string
		want  string
	}{
		"there":        {[][]string{{"one", "two"}}, ""},
		"sent twice":   {[][]string{{"one", "two"}, {"two"}}, ""},
		"lost":         {[][]string{{"two"}}, `"one" in sandbox box was acknowledged and is lost`},
		"doubled":      {[][]string{{"one"}, {"two", "one"}}, `"one" in sandbox box was delivered 2 times, at most 1 can be`},
		"three of two": {[][]string{{"one", "two", "two"}, {"two"}}, `"two" in sandbox box was delivered 3 times`},
	} {
		pages = c.pages
		a := NewActors(ActorOptions{
			Cluster: &testcluster.Cluster{Nodes: []*testcluster.Node{{Client: testcluster.Client{Base: server.URL}}}},
		}).actor()
		b := &owned{
			id:   "box",
			chat: chat{conversation: "c", sent: []*message{{text: "one", most: 1}, {text: "two", most: 2}}},
		}
		err := a.hear(b)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
