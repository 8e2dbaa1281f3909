package httpapi

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// TestModels_AServerWithItsOwnCertificateAndSlots: the operator's certificates and headers count for
// one server, and a request that waits for its slot is told its place.
func TestModels_AServerWithItsOwnCertificateAndSlots(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("unused")))
	asked, release := make(chan string, 8), make(chan struct{})
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("X-Team")
		<-release
		fmt.Fprint(w, `{"choices":[]}`)
	}))
	defer endpoint.Close()
	h.baseURL(endpoint.URL + "/v1")
	token := h.token()
	h.refused(token, pathChat, chatBody, 502, "failed", "does not answer") // who signed it?
	host := strings.TrimPrefix(endpoint.URL, "https://")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw})
	h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}, Servers: []fsm.ModelServer{
		{Host: host, CA: string(ca), Headers: map[string]string{"X-Team": "agents"}, Slots: 1},
	}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res := h.ask(t.Context(), token, pathChat, chatBody); res.StatusCode != http.StatusOK {
			t.Errorf("the first request: %d", res.StatusCode)
		}
	}()
	if got := <-asked; got != "agents" {
		t.Errorf("the header is %q", got)
	}
	var places []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			places = append(places, fmt.Sprintf("%d at %s", status, header.Get("X-Bivouac-Place")))
			select {
			case got := <-asked:
				t.Errorf("a second request is there: %q", got)
			default:
				close(release)
			}
			return nil
		},
	})
	res := h.ask(ctx, token, pathChat, chatBody, "X-Bivouac-Place", "1")
	if whole(t, res, 200); len(places) != 1 || places[0] != "102 at 1" || res.Header.Get("X-Bivouac-Place") != "" {
		t.Errorf("told %v, then %v", places, res.Header)
	}
	<-done
}

// occupied is a server with one slot, which a first request has until release. first has its status.
type occupied struct {
	token   string
	asked   chan struct{}
	release func()
	first   chan int
}

func (h *modelHarness) occupy() occupied {
	h.t.Helper()
	until := make(chan struct{})
	o := occupied{
		asked: make(chan struct{}, 2), release: sync.OnceFunc(func() { close(until) }), first: make(chan int, 1),
	}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		o.asked <- struct{}{}
		<-until
		fmt.Fprint(w, `{"choices":[]}`)
	}))
	h.t.Cleanup(endpoint.Close)
	h.t.Cleanup(o.release)
	h.baseURL(endpoint.URL + "/v1")
	h.configure(fsm.LLM{Hosts: []string{fsm.HostLocal}, Servers: []fsm.ModelServer{
		{Host: strings.TrimPrefix(endpoint.URL, "http://"), Slots: 1},
	}})
	o.token = h.token()
	go func() { o.first <- h.ask(h.t.Context(), o.token, pathChat, chatBody).StatusCode }()
	<-o.asked
	return o
}

// TestModels_AWaitOutlastsTheServersWriteTimeout: who waits for a slot keeps the place.
func TestModels_AWaitOutlastsTheServersWriteTimeout(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("unused")),
		func(c *Config) { c.LLM.PlaceEvery = 20 * time.Millisecond })
	front := httptest.NewUnstartedServer(h.handler)
	front.Config.WriteTimeout = 50 * time.Millisecond
	front.Start()
	t.Cleanup(front.Close)
	h.front = front
	o := h.occupy()
	told := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if told++; told == 10 { // long after the time-out
				o.release()
			}
			return nil
		},
	})
	whole(t, h.ask(ctx, o.token, pathChat, chatBody, "X-Bivouac-Place", "1"), 200)
	if status := <-o.first; status != http.StatusOK {
		t.Errorf("the first request: %d", status)
	}
}

// TestModels_WhoIsDisabledInTheQueueAsksNoModel once the slot is free.
func TestModels_WhoIsDisabledInTheQueueAsksNoModel(t *testing.T) {
	t.Parallel()
	h := newModelHarness(t, modeltest.Turns(modeltest.Text("unused")))
	o := h.occupy()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error {
			h.apply("", &fsm.UserDisableBody{UserID: "alice"})
			o.release()
			return nil
		},
	})
	body := whole(t, h.ask(ctx, o.token, pathChat, chatBody, "X-Bivouac-Place", "1"), http.StatusUnauthorized)
	if <-o.first; !strings.Contains(body, "bivouac_token") || len(o.asked) != 0 {
		t.Errorf("the model was asked %d times more: %s", len(o.asked), body)
	}
}

// TestModels_WhoIsToldThePlace: nobody behind a proxy, which may take it for the answer.
func TestModels_WhoIsToldThePlace(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} })
	informs := h.server.forModels().Informs
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   bool
	}{
		"a sandbox":               {func(*http.Request) {}, true},
		"HTTP/2":                  {func(r *http.Request) { r.ProtoMajor, r.ProtoMinor = 2, 0 }, true},
		"HTTP/1.0":                {func(r *http.Request) { r.ProtoMinor = 0 }, false},
		"a trusted proxy":         {func(r *http.Request) { r.RemoteAddr = "192.0.2.7:1" }, false},
		"a proxy that says so":    {func(r *http.Request) { r.Header.Set("X-Forwarded-For", "203.0.113.9") }, false},
		"one of RFC 7239's words": {func(r *http.Request) { r.Header.Set("Forwarded", "for=203.0.113.9") }, false},
	} {
		r := httptest.NewRequest(http.MethodPost, pathChat, nil)
		r.RemoteAddr = "198.51.100.4:1"
		if c.change(r); informs(r) != c.want {
			t.Errorf("%s is told: %t", name, !c.want)
		}
	}
}

// TestConfig_ServersAndProfiles are read, refused and replaced like the rest of llm.
func TestConfig_ServersAndProfiles(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.apply("", &fsm.ProtocolRaiseBody{Version: fsm.VersionServers - 1})
	const put = `{"limits":{"on_limit":"refuse"},
		"llm":{"servers":[{"host":"llm.example.org:8443","headers":{"X-Team":"a"},"slots":4}],
		"profiles":[{"model":"qwen*","max_input_tokens":32768,"temperature":0.2,"disable_vision":true}]}}`
	if res := h.do(h.root, http.MethodPut, pathConfig, put); res.status != http.StatusConflict ||
		!strings.Contains(string(res.body), "setting llm's servers and profiles needs protocol version 12") {
		t.Errorf("%d %s", res.status, res.body)
	}
	h.newest()
	h.do(h.root, http.MethodPut, pathConfig, put).want(t, 200)
	l := h.cluster.store.View().Installation().LLM
	if s := l.ServerAt("LLM.example.org", "8443"); s == nil || s.Slots != 4 || s.Headers["X-Team"] != "a" ||
		l.ServerAt("llm.example.org", "443") != nil {
		t.Errorf("the servers are %+v", l.Servers)
	}
	if p := l.SettingsOf("openai/qwen3"); p.MaxInputTokens == nil || *p.MaxInputTokens != 32768 || *p.Temperature != 0.2 ||
		!*p.DisableVision || p.Timeout != nil {
		t.Errorf("the profiles are %+v", l.Profiles)
	}
	body := string(h.do(h.root, http.MethodGet, pathConfig, "").want(t, 200).body)
	var is, again wire.Config
	h.do(h.root, http.MethodGet, pathConfig, "").json(t, &is)
	h.do(h.root, http.MethodPut, pathConfig, body).want(t, 200).json(t, &again)
	if again.Index != is.Index {
		t.Errorf("the same configuration changed the index: %s", body)
	}
	for bad, says := range map[string]string{
		`{"servers":[{"host":"https://x"}]}`:                              "must be a host name",
		`{"servers":[{"host":"x"},{"host":"X"}]}`:                         "comes twice",
		`{"servers":[{"host":"x","ca":"no"}]}`:                            "must be certificates in PEM",
		`{"servers":[{"host":"x","headers":{"Authorization":"Bearer"}}]}`: "may hold a secret",
		`{"servers":[{"host":"x","headers":{"X-Api-Key":"k"}}]}`:          "may hold a secret",
		`{"servers":[{"host":"x","headers":{"Host":"y"}}]}`:               "is the request's own",
		`{"servers":[{"host":"x","slots":-1}]}`:                           "slots must be between",
		`{"servers":[{"host":"x","port":1}]}`:                             "Extra inputs",
		`{"profiles":[{"model":"a"},{"model":"a"}]}`:                      "comes twice",
		`{"profiles":[{"model":"a","max_input_tokens":0}]}`:               "max_input_tokens must be between",
		`{"profiles":[{"model":"a","temperature":3}]}`:                    "temperature must be between",
		`{"profiles":[{"max_input_tokens":1}]}`:                           "Field required",
	} {
		if res := h.do(h.root, http.MethodPut, pathConfig, `{"llm":`+bad+`}`); res.status != 422 ||
			!strings.Contains(string(res.body), says) {
			t.Errorf("%s: %d %s", bad, res.status, res.body)
		}
	}
}
