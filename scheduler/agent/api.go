package agent

import (
	"encoding/json"
	"strings"
)

// EnvAPIURLs is the variable that has the nodes' URLs as the sandbox reaches them, a JSON list
// (PROTOCOL.md, "Environment").
const EnvAPIURLs = "BIVOUAC_API_URLS"

// APIEnvironment returns what a sandbox's environment says of the nodes; nil without URLs.
func APIEnvironment(urls []string) map[string]string {
	if len(urls) == 0 {
		return nil
	}
	list, err := json.Marshal(urls)
	if err != nil {
		panic("a list of texts is JSON: " + err.Error())
	}
	return map[string]string{EnvAPIURLs: string(list)}
}

// GatewayURL returns the base URL of the model gateway's OpenAI API on a node.
func GatewayURL(api string) string { return strings.TrimRight(api, "/") + "/llm/v1" }
