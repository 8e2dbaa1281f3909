package llm

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"bivouac.dev/bivouac/fsm"
)

// TestTarget_AzuresVersionAndKey: the version of the settings' URL is in each request, and the key in
// Azure's header, which no other endpoint gets.
func TestTarget_AzuresVersionAndKey(t *testing.T) {
	t.Parallel()
	o := operation{wire: wireOpenAI, path: "/chat/completions"}
	const azure = "https://x.openai.azure.com"
	for base, want := range map[string]string{
		azure + "/openai/deployments/d/chat/completions?api-version=2024-10-21": azure +
			"/openai/deployments/d/chat/completions?api-version=2024-10-21",
		azure: azure + "/openai/v1/chat/completions?api-version=client",
		"https://models.example/v1/chat/completions/": "https://models.example/v1/chat/completions?api-version=client",
	} {
		q := &request{operation: o, key: "sk-owner"}
		var err error
		if q.target, err = targetOf(o, fsm.ModelEndpoint{Model: "openai/d", BaseURL: base}); err != nil {
			t.Fatal(err)
		}
		got, err := q.target.below(o.path, passedQuery(url.Values{"api-version": {"client"}, "x": {"1"}}))
		if err != nil || got.String() != want {
			t.Errorf("%s is asked at %s, want %s: %v", base, got, want, err)
		}
		h := http.Header{}
		q.setKey(h)
		if azure := h.Get("Api-Key") == "sk-owner"; azure != q.target.azure || h.Get("Authorization") != "Bearer sk-owner" {
			t.Errorf("%s: the headers are %v", base, h)
		}
	}
}

// TestTarget_OllamasRunningModels are beside its OpenAI API.
func TestTarget_OllamasRunningModels(t *testing.T) {
	t.Parallel()
	o, known := operationOf(httptest.NewRequest(http.MethodGet, "/llm/api/ps", nil))
	at, err := targetOf(o, fsm.ModelEndpoint{Model: "openai/d", BaseURL: "http://127.0.0.1:11434/v1"})
	if err != nil || !known {
		t.Fatal(known, err)
	}
	if got, err := at.below(o.path, url.Values{}); err != nil || got.String() != "http://127.0.0.1:11434/api/ps" {
		t.Errorf("asked at %s: %v", got, err)
	}
	if _, known := operationOf(httptest.NewRequest(http.MethodPost, "/llm/api/ps", nil)); known {
		t.Error("it may be posted to")
	}
}

// TestPriceOf_TheOperatorsElseTheVendors: a list price counts where the vendor itself is asked.
func TestPriceOf_TheOperatorsElseTheVendors(t *testing.T) {
	t.Parallel()
	own := fsm.LLM{Prices: []fsm.Price{{Model: "gpt-5", Input: 7}}}
	for _, c := range []struct {
		policy            fsm.LLM
		model, base, name string
		input             float64 // -1 for no price
	}{
		{fsm.LLM{}, "openai/gpt-5", "", "gpt-5", 1.25},
		{fsm.LLM{}, "openai/gpt-5", "https://api.openai.com/v1/", "openai/gpt-5", 1.25},
		{fsm.LLM{}, "openai/gpt-5", "https://proxy.example/v1", "gpt-5", -1},
		{fsm.LLM{}, "openai/gpt-5", "", "invented", -1},
		{fsm.LLM{}, "hosted_vllm/gpt-5", "http://127.0.0.1:8000/v1", "gpt-5", -1},
		{fsm.LLM{}, "hosted_vllm/gpt-5", "https://api.openai.com/v1", "gpt-5", 1.25},
		{fsm.LLM{}, "openai/gpt-5", "https://api.openai.com:443/v1", "gpt-5", 1.25},
		{fsm.LLM{}, "openai/gpt-5", "https://api.openai.com:00443/v1", "gpt-5", 1.25},
		{fsm.LLM{}, "openai/gpt-5", "https://api.openai.com./v1", "gpt-5", 1.25},
		{fsm.LLM{}, "openai/gpt-5", "https://API.OpenAI.com/v1", "gpt-5", 1.25},
		{fsm.LLM{}, "openai/gpt-5", "https://api.openai.com/v1/../v1", "gpt-5", 1.25},
		{own, "openai/gpt-5", "", "gpt-5", 7},
		{own, "openai/gpt-5", "https://proxy.example/v1", "gpt-5", 7},
	} {
		o := operation{wire: wireOpenAI}
		to, err := targetOf(o, fsm.ModelEndpoint{Model: c.model, BaseURL: c.base})
		if err != nil {
			t.Fatal(err)
		}
		got := to.ratesOf(c.policy, c.name)
		if got == nil && c.input != -1 || got != nil && got.Input != c.input {
			t.Errorf("%s at %q: %+v, want %g", c.name, c.base, got, c.input)
		}
	}
}

// TestServerAt_EverySpelling of a host and a port means the same server, and the one with its port
// counts before the one for every port.
func TestServerAt_EverySpelling(t *testing.T) {
	t.Parallel()
	policy := fsm.LLM{Servers: []fsm.ModelServer{
		{Host: "llm.example.org", Slots: 1}, {Host: "LLM.example.org:8443", Slots: 2}, {Host: "10.1.2.3:80", Slots: 3},
		{Host: "[fd00::1]:8443", Slots: 4}, {Host: "fd00::1", Slots: 5},
	}}
	for base, slots := range map[string]int64{
		"https://llm.example.org/v1": 1, "https://LLM.Example.ORG./v1": 1, "https://llm.example.org..:9/v1": 1,
		"https://llm.example.org:8443/v1": 2, "https://llm.example.org:08443/v1": 2, "https://LLM.example.org.:8443": 2,
		"http://10.1.2.3/v1": 3, "http://10.1.2.3:080": 3, "http://[::ffff:10.1.2.3]/v1": 3, "http://10.1.2.3:81": 0,
		"https://[fd00:0::1]:8443/v1": 4, "https://[FD00::1]/v1": 5, "https://llm.example.org.evil.example": 0,
		"https://ＬＬＭ.example.org/v1": -1, "https://llm.example.org:70000": -1, "https://.": -1, // refused
	} {
		to, err := targetOf(operation{wire: wireOpenAI}, fsm.ModelEndpoint{Model: "hosted_vllm/m", BaseURL: base})
		got := int64(-1)
		if err == nil {
			got = 0
			if s := serverAt(policy, to.URL); s != nil {
				got = s.Slots
			}
		}
		if got != slots {
			t.Errorf("%s is the server with %d slots, want %d", base, got, slots)
		}
	}
}

// TestCheckCA_CertificatesAndNothingElse.
func TestCheckCA_CertificatesAndNothingElse(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	one := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	noted := pem.EncodeToMemory(&pem.Block{
		Type: "CERTIFICATE", Bytes: s.Certificate().Raw, Headers: map[string]string{"Note": "x"},
	})
	for text, good := range map[string]bool{
		"": true, one: true, "\n" + one + "\n" + one: true, " ": false, "text\n" + one: false, one + "text": false,
		one + "text\n" + one: false, "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n" + one: false,
		string(noted): false, one + "-----BEGIN CERTIFICATE-----\n": false,
	} {
		if err := CheckCA(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
