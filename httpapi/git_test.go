package httpapi

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/git"
)

// gitHosts is a server for all git providers; it accepts the token "good".
func gitHost(t *testing.T, seen *[]string) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen != nil {
			*seen = append(*seen, r.URL.Path)
		}
		auth := r.Header.Get("Authorization") + r.Header.Get("Private-Token")
		if text, found := strings.CutPrefix(auth, "Basic "); found {
			b, _ := base64.StdEncoding.DecodeString(text)
			auth = string(b)
		}
		if strings.Contains(auth, "elsewhere") {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		if !strings.HasSuffix(auth, "good") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/api/v3/user", "/api/v1/user":
			fmt.Fprint(w, `{"login":"octo"}`)
		case "/api/v4/user":
			fmt.Fprint(w, `{"username":"octo"}`)
		case "/2.0/user":
			fmt.Fprint(w, `{"account_id":"7"}`)
		case "/rest/api/1.0/projects":
			fmt.Fprint(w, `{"values":[]}`)
		case "/api/v3/repos/octo/app", "/api/v1/repos/octo/app", "/2.0/repositories/octo/app":
			fmt.Fprint(w, `{"id":1,"full_name":"octo/app"}`)
		case "/api/v4/projects/octo/app":
			if r.URL.RawPath != "/api/v4/projects/octo%2Fapp" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			fmt.Fprint(w, `{"id":1}`)
		case "/busy/api/v1/repos/octo/app":
			w.WriteHeader(http.StatusBadGateway)
		case "/org/_apis/connectionData":
			fmt.Fprint(w, `{"authenticatedUser":{"id":"1"}}`)
		default:
			if strings.Contains(r.URL.Path, "/repos") || strings.Contains(r.URL.Path, "/projects/") {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			fmt.Fprint(w, `{}`)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

func verifying(srv *httptest.Server) func(*Config) {
	return func(c *Config) {
		c.Git.VerifyTokens = true
		c.Git.Schemes = []string{"https", "http"}
		c.Git.AllowedHosts = []string{strings.TrimPrefix(srv.URL, "http://")}
	}
}

func providersOf(t *testing.T, h *harness, user string) map[fsm.ProviderType]*fsm.Provider {
	t.Helper()
	v, err := h.cluster.View(t.Context(), cluster.Stale)
	if err != nil {
		t.Fatal(err)
	}
	out := map[fsm.ProviderType]*fsm.Provider{}
	for _, p := range v.Providers(user) {
		out[p.Type] = p
	}
	return out
}

func TestProviders_Replace(t *testing.T) {
	h := newHarness(t)
	h.do(h.alice, "POST", "/api/add-git-providers",
		`{"provider_tokens":{"github":{"token":"ghp_x","host":null},"gitlab":{"token":"gl"}}}`).
		want(t, 200).is(t, `{"message":"Git providers stored"}`)
	h.do(h.alice, "POST", "/api/add-git-providers",
		`{"provider_tokens":{"github":{"token":"  ","host":"git.example.org"}}}`).want(t, 200)
	got := providersOf(t, h, "alice")
	if len(got) != 1 || got["github"].Ref.IsZero() || *got["github"].Host != "git.example.org" {
		t.Fatalf("providers %v", got)
	}
	h.do(h.alice, "POST", "/api/add-git-providers", `{}`).want(t, 200)
	if got := providersOf(t, h, "alice"); len(got) != 0 {
		t.Fatalf("{} left %v", got)
	}
}

func TestProviders_EveryKindIsVerified(t *testing.T) {
	srv := gitHost(t, nil)
	h := newHarness(t, verifying(srv))
	for _, kind := range git.Providers() {
		host := srv.URL
		if kind == "azure_devops" {
			host += "/org"
		}
		body := func(token string) string {
			return sprint(`{"provider_tokens":{"%s":{"token":"%s","host":"%s"}}}`, kind, token, host)
		}
		before := h.cluster.count()
		want := sprint("Invalid token. Please make sure it is a valid %s token.", kind)
		h.do(h.alice, "POST", "/api/add-git-providers", body("bad")).want(t, 401).is(t,
			sprint(`{"error":%q,"detail":%q}`, want, want))
		if h.cluster.count() != before || h.secrets.last("users/alice/providers/"+kind) != nil {
			t.Fatalf("%s: a bad token was stored", kind)
		}
		status := 200
		if kind == "enterprise_sso" {
			status = 401
		}
		h.do(h.alice, "POST", "/api/add-git-providers", body("good")).want(t, status)
	}
}

func TestProviders_OneBadTokenRefusesAll(t *testing.T) {
	srv := gitHost(t, nil)
	h := newHarness(t, verifying(srv))
	h.do(h.alice, "POST", "/api/add-git-providers", sprint(
		`{"provider_tokens":{"github":{"token":"bad","host":"%[1]s"},"gitlab":{"token":"good","host":"%[1]s"}}}`,
		srv.URL)).want(t, 401)
	if h.secrets.written() != 0 || len(providersOf(t, h, "alice")) != 0 {
		t.Fatal("something was stored")
	}
}

func TestProviders_StoredTokenIsCheckedAgainstANewHost(t *testing.T) {
	srv := gitHost(t, nil)
	h := newHarness(t, verifying(srv))
	h.apply("alice", &fsm.ProvidersReplaceBody{Providers: []fsm.Provider{{UserID: "alice", Type: "gitlab",
		Ref: fsm.SecretRef{Path: "users/alice/providers/gitlab", Version: 1}}}})
	h.secrets.entries["users/alice/providers/gitlab"] = []map[string]string{{"token": "stale"}}
	h.do(h.alice, "POST", "/api/add-git-providers",
		sprint(`{"provider_tokens":{"gitlab":{"host":"%s"}}}`, srv.URL)).want(t, 401)
	h.secrets.entries["users/alice/providers/gitlab"] = []map[string]string{{"token": "good"}}
	h.do(h.alice, "POST", "/api/add-git-providers",
		sprint(`{"provider_tokens":{"gitlab":{"host":"%s"}}}`, srv.URL)).want(t, 200)
	if p := providersOf(t, h, "alice")["gitlab"]; p.Ref.IsZero() {
		t.Fatal("the stored token is gone")
	}
}

func TestProviders_HostPolicy(t *testing.T) {
	var seen []string
	srv := gitHost(t, &seen)
	port := srv.URL[strings.LastIndex(srv.URL, ":")+1:]
	h := newHarness(t, verifying(srv), func(c *Config) { c.Git.AllowedHosts = nil })
	for _, host := range []string{
		"http://127.0.0.1:" + port, "http://localhost:" + port, "http://[::1]:" + port, "http://10.0.0.1",
		"http://192.168.1.1",
		"http://169.254.169.254", "http://[::ffff:127.0.0.1]:" + port, "http://0.0.0.0:" + port, "http://100.64.0.1",
		"http://[fe80::1]",
		"http://[64:ff9b::7f00:1]", "http://2130706433:" + port,
	} {
		res := h.do(h.alice, "POST", "/api/add-git-providers",
			sprint(`{"provider_tokens":{"forgejo":{"token":"good","host":"%s"}}}`, host))
		if res.status != 422 && res.status != 401 {
			t.Errorf("%s: status %d", host, res.status)
		}
	}
	if len(seen) != 0 {
		t.Fatalf("the server was asked: %v", seen)
	}
	for _, host := range []string{"ftp://x", "http://u:p@h", "h ost", "http://", "https://h/?q=1"} {
		h.do(h.alice, "POST", "/api/add-git-providers",
			sprint(`{"provider_tokens":{"forgejo":{"token":"good","host":"%s"}}}`, host)).want(t, 422)
	}
	only := newHarness(t, verifying(srv), func(c *Config) { c.Git.Schemes = []string{"https"} })
	only.do(only.alice, "POST", "/api/add-git-providers",
		sprint(`{"provider_tokens":{"forgejo":{"token":"good","host":"%s"}}}`, srv.URL)).want(t, 422)
}

func TestProviders_RedirectsAreNotFollowed(t *testing.T) {
	srv := gitHost(t, nil)
	h := newHarness(t, verifying(srv))
	h.do(h.alice, "POST", "/api/add-git-providers",
		sprint(`{"provider_tokens":{"forgejo":{"token":"elsewhere","host":"%s"}}}`, srv.URL)).want(t, 401)
}

func TestV0Start_RepositoryOutOfReach(t *testing.T) {
	srv := gitHost(t, nil)
	h := newHarness(t, verifying(srv)).withSettings()
	start := func(body string) reply { return h.do(h.alice, "POST", "/api/conversations", body) }
	// Without a token the repository may be public.
	start(`{"repository":"octo/app","git_provider":"github"}`).want(t, 200)
	for _, kind := range []string{"github", "gitlab", "bitbucket", "forgejo"} {
		h.do(h.alice, "POST", "/api/add-git-providers",
			sprint(`{"provider_tokens":{"%s":{"token":"good","host":"%s"}}}`, kind, srv.URL)).want(t, 200)
		start(sprint(`{"repository":"octo/app","git_provider":%q}`, kind)).want(t, 200)
		start(`{"repository":"octo/app"}`).want(t, 200)
		before := h.cluster.count()
		res := start(sprint(`{"repository":"octo/secret","git_provider":%q}`, kind)).want(t, 401)
		if string(res.body) != `"Unable to access repo octo/secret"` || res.header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: %s", kind, res.body)
		}
		start(`{"repository":"octo/secret"}`).want(t, 401)
		if h.cluster.count() != before {
			t.Error("a task was made")
		}
	}
	// A failing provider does not block a start.
	h.apply("alice", &fsm.ProvidersReplaceBody{Providers: []fsm.Provider{{UserID: "alice", Type: "forgejo",
		Host: ptr(srv.URL + "/busy"), Ref: fsm.SecretRef{Path: "users/alice/providers/forgejo", Version: 1}}}})
	start(`{"repository":"octo/app","git_provider":"forgejo"}`).want(t, 200)
	// A repository's name can't change the request's path.
	for _, name := range []string{"../../admin", "octo/app/../x", "octo", "a/b?c=d", "a/b#c", "%2e%2e/x"} {
		start(sprint(`{"repository":%q,"git_provider":"forgejo"}`, name)).want(t, 200)
	}
}
