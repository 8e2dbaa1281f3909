package preset

import (
	"net/url"
	"strings"
)

// API is a protocol in which the native agent asks models.
type API string

// The APIs of models.
const (
	Completions API = "completions" // OpenAI's chat completions, which most servers speak
	Responses   API = "responses"   // OpenAI's Responses
	Messages    API = "messages"    // Anthropic's Messages
)

// Path is the API's path below a base URL.
func (a API) Path() string {
	if a == Completions {
		return "/chat/completions"
	}
	return "/" + string(a)
}

// Named is how a model's settings name the API, "" for chat completions, which is what none means.
func (a API) Named() string {
	if a == Completions {
		return ""
	}
	return string(a)
}

// APIOf returns the API in which a model is asked. The settings' base URL says it where it ends with an
// API's path, such as https://llm.example/v1/responses, or names Anthropic's beside others, such as
// https://llm.example/anthropic. At their makers' own addresses models of Anthropic are asked in
// Messages, and models of OpenAI that reason in Responses: only there thoughts are kept between calls.
func APIOf(model, settings string) API {
	base, _, _ := strings.Cut(strings.TrimSpace(settings), "?")
	base = strings.TrimRight(base, "/")
	for _, a := range []API{Completions, Responses, Messages} {
		if strings.HasSuffix(base, a.Path()) {
			return a
		}
	}
	if strings.HasSuffix(strings.TrimSuffix(base, "/v1"), "/anthropic") {
		return Messages
	}
	v, known := VendorOf(model)
	if !known || base != "" && hostOf(base) != hostOf(v.OpenAI) {
		return Completions
	}
	switch {
	case v.Anthropic != "" && v.Anthropic == v.OpenAI:
		return Messages
	case v.Prefixes[0] == vendors[0].Prefixes[0] && Reasons(BareModel(model)):
		return Responses
	}
	return Completions
}

func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// Reasons reports whether a model is one of OpenAI's that reason: they refuse a temperature and count
// their thoughts with the output.
func Reasons(model string) bool {
	for _, prefix := range []string{"o1", "o3", "o4", "gpt-5", "gpt-6"} {
		if strings.HasPrefix(model, prefix) {
			return true
		}
	}
	return false
}
