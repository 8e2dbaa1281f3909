package preset

import (
	"net/url"
	"strings"
	"testing"
)

// TestVendors_EachNameHasOne: no prefix and no beginning tells two vendors.
func TestVendors_EachNameHasOne(t *testing.T) {
	t.Parallel()
	prefixes, begins := map[string]bool{}, map[string]bool{}
	for _, v := range Vendors() {
		for _, p := range v.Prefixes {
			if got, known := VendorOf(p + "/x"); prefixes[p] || !known || got.Prefixes[0] != v.Prefixes[0] ||
				BareModel(p+"/org/x") != "org/x" {
				t.Errorf("the prefix %s tells %v, and its model is sent as %q", p, got.Prefixes, BareModel(p+"/org/x"))
			}
			prefixes[p] = true
		}
		for _, b := range v.Begins {
			if got, known := VendorOf(strings.ToUpper(b) + "-9"); begins[b] || !known || got.Prefixes[0] != v.Prefixes[0] {
				t.Errorf("%s-9 tells %v, want %s", b, got.Prefixes, v.Prefixes[0])
			}
			begins[b] = true
		}
		for _, base := range []string{v.OpenAI, v.Anthropic, v.Gemini} {
			if u, err := url.Parse(base); base != "" && (err != nil || u.Host == "" || strings.HasSuffix(base, "/") ||
				(u.Scheme == "https") == v.Local) {
				t.Errorf("%s has the base URL %q", v.Prefixes[0], base)
			}
		}
	}
	if v, known := VendorOf("bedrock/x"); known || BareModel("bedrock/x") != "bedrock/x" ||
		BareModel("Qwen/Qwen3-Coder") != "Qwen/Qwen3-Coder" {
		t.Errorf("an unknown prefix tells %v", v.Prefixes)
	}
	if v, known := VendorOf(""); !known || v.Prefixes[0] != "openai" || BareModel("qwen3") != "qwen3" {
		t.Errorf("no name tells %v", v.Prefixes)
	}
}

// TestEndpointOf: a URL as people paste it leads to the same place as the base URL.
func TestEndpointOf(t *testing.T) {
	t.Parallel()
	const azure = "https://x.openai.azure.com/openai"
	for given, want := range map[string]Endpoint{
		"http://llm:8000/v1":                                    {Base: "http://llm:8000/v1"},
		"http://llm:8000/v1/":                                   {Base: "http://llm:8000/v1"},
		" http://llm:8000/v1/chat/completions ":                 {Base: "http://llm:8000/v1"},
		"http://llm:8000/v1/chat/completions/":                  {Base: "http://llm:8000/v1"},
		"https://llm/api/v1/responses":                          {Base: "https://llm/api/v1"},
		"https://llm/v1/messages":                               {Base: "https://llm/v1"},
		"https://x.openai.azure.com":                            {Base: azure + "/v1", Azure: true},
		"https://X.OpenAI.Azure.com/openai/":                    {Base: "https://X.OpenAI.Azure.com/openai/v1", Azure: true},
		azure + "/v1/":                                          {Base: azure + "/v1", Azure: true},
		azure + "/deployments/d?api-version=2024-10-21":         {azure + "/deployments/d", "2024-10-21", true},
		azure + "/deployments/d/chat/completions?api-version=1": {azure + "/deployments/d", "1", true},
		"https://azure.com.evil.example/v1":                     {Base: "https://azure.com.evil.example/v1"},
	} {
		if got := EndpointOf("gpt-5", given); got != want {
			t.Errorf("%s is %+v, want %+v", given, got, want)
		}
	}
	if got := EndpointOf("azure/d", "https://models.corp.example").URL("/chat/completions"); got !=
		"https://models.corp.example/openai/v1/chat/completions" {
		t.Errorf("azure/d is asked at %s", got)
	}
	e := EndpointOf("azure/d", azure+"/deployments/d?api-version=2024-10-21")
	if got := e.URL("/chat/completions"); got != azure+"/deployments/d/chat/completions?api-version=2024-10-21" {
		t.Errorf("asked at %s", got)
	}
}
