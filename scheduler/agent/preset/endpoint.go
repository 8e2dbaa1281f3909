package preset

import (
	"net/url"
	"strings"
)

// Endpoint is where a server of models is.
type Endpoint struct {
	// Base is the URL up to and with the version, without a slash at its end; "" is unknown.
	Base string
	// Version is Azure's api-version, which each request's query has; "" is none.
	Version string
	// Azure means that the key comes in the header api-key, too.
	Azure bool
}

const (
	// QueryVersion is the member of a query that has Azure's version.
	QueryVersion = "api-version"
	// PathRunning lists the models that Ollama has loaded, with their windows. It is beside its OpenAI API.
	PathRunning = "/api/ps"
)

// operations are what a URL that was copied from an example ends with.
var operations = []string{ //nolint:gochecknoglobals // read-only
	"/chat/completions", "/completions", "/responses", "/messages", "/models", "/embeddings",
}

// EndpointOf returns the endpoint that the settings' base URL means, else that of the model's vendor
// for the OpenAI API. An operation at the base URL's end is left out. Azure's resource without a path
// means its OpenAI API of version 1.
func EndpointOf(model, settings string) Endpoint {
	base, query, _ := strings.Cut(strings.TrimSpace(settings), "?")
	base = strings.TrimRight(base, "/")
	if base == "" {
		v, _ := VendorOf(model)
		return Endpoint{Base: v.OpenAI}
	}
	for _, o := range operations {
		if rest, has := strings.CutSuffix(base, o); has {
			base = strings.TrimRight(rest, "/")
			break
		}
	}
	e := Endpoint{Base: base}
	if values, err := url.ParseQuery(query); err == nil {
		e.Version = values.Get(QueryVersion)
	}
	prefix, _, _ := strings.Cut(model, "/")
	u, err := url.Parse(base)
	if err != nil {
		return e
	}
	e.Azure = prefix == "azure" || isAzure(u.Hostname())
	if e.Azure && (u.Path == "" || u.Path == "/openai") {
		e.Base = strings.TrimSuffix(base, "/openai") + "/openai/v1"
	}
	return e
}

// isAzure reports whether a host is one of Azure's for models.
func isAzure(host string) bool {
	for _, domain := range []string{".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"} {
		if strings.HasSuffix(strings.ToLower(host), domain) {
			return true
		}
	}
	return false
}

// URL is the address of a path below the endpoint.
func (e Endpoint) URL(path string) string {
	if e.Version != "" {
		path += "?" + url.Values{QueryVersion: {e.Version}}.Encode()
	}
	return e.Base + path
}

// BaseURL is the Base of EndpointOf.
func BaseURL(model, settings string) string { return EndpointOf(model, settings).Base }
