package httpapi

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/google/shlex"
)

// defaultMCPTimeout is upstream's for HTTP MCP servers, in seconds.
const defaultMCPTimeout = 60

// mcpName is what a stdio server may be called.
var mcpName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// mcpConfig is an MCPConfig with its defaults filled in (seed-api.md 2.2,
// api-contract.md A.1). All of it may be secret: keys and env by nature, URLs
// and arguments because people put tokens there.
type mcpConfig struct {
	SSEServers   []mcpSSEServer   `json:"sse_servers"`
	StdioServers []mcpStdioServer `json:"stdio_servers"`
	SHTTPServers []mcpHTTPServer  `json:"shttp_servers"`
}

type mcpSSEServer struct {
	URL    string  `json:"url"`
	APIKey *string `json:"api_key"`
}

type mcpHTTPServer struct {
	URL    string  `json:"url"`
	APIKey *string `json:"api_key"`
	// Timeout is in seconds.
	Timeout *int64 `json:"timeout"`
}

type mcpStdioServer struct {
	Name    string            `json:"name"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
}

// readMCPConfig reads the member mcp_config; absent and null are nil.
func readMCPConfig(o object) *mcpConfig {
	m, ok := o.masked().object("mcp_config")
	if !ok {
		return nil
	}
	m.strict("sse_servers", "stdio_servers", "shttp_servers")
	c := &mcpConfig{SSEServers: []mcpSSEServer{}, StdioServers: []mcpStdioServer{}, SHTTPServers: []mcpHTTPServer{}}
	for _, e := range m.elements("sse_servers", true) {
		c.SSEServers = append(c.SSEServers, mcpSSEServer{URL: readMCPURL(e), APIKey: e.text("api_key", maxText)})
	}
	for _, e := range m.elements("shttp_servers", true) {
		c.SHTTPServers = append(c.SHTTPServers, mcpHTTPServer{
			URL: readMCPURL(e), APIKey: e.text("api_key", maxText), Timeout: readMCPTimeout(e),
		})
	}
	for _, e := range m.elements("stdio_servers", false) {
		c.StdioServers = append(c.StdioServers, readMCPStdio(e))
	}
	return c
}

// elements gives the objects of a list that must not be null. With urls set a
// bare text is short for {"url": text}.
func (o object) elements(name string, urls bool) []object {
	if !o.notNull(name, kindList) {
		return nil
	}
	items, ok := o.list(name)
	if !ok {
		return nil
	}
	var out []object
	for _, i := range items.indexes() {
		if s, isText := items.value(i).(string); isText && urls {
			items.m[i] = map[string]any{"url": s}
		}
		if !items.notNull(i, kindObject) {
			continue
		}
		if e, ok := items.object(i); ok {
			out = append(out, e)
		}
	}
	return out
}

func readMCPURL(e object) string {
	before := len(e.errs.list)
	s := strings.TrimSpace(e.mustText("url", maxText))
	if len(e.errs.list) > before {
		return ""
	}
	u, err := url.Parse(s)
	switch {
	case s == "":
		e.rule("url", "URL cannot be empty")
	case err != nil || u.Host == "":
		e.rule("url", "URL must have a scheme and a host")
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "ws" && u.Scheme != "wss":
		e.rule("url", "URL scheme must be http, https, ws, or wss")
	}
	return s
}

func readMCPTimeout(e object) *int64 {
	if !e.has("timeout") {
		n := int64(defaultMCPTimeout)
		return &n
	}
	n := e.integer("timeout")
	if n != nil && (*n < 1 || *n > 3600) {
		e.rule("timeout", "Timeout must be between 1 and 3600 seconds")
	}
	return n
}

func readMCPStdio(e object) mcpStdioServer {
	before := len(e.errs.list)
	s := mcpStdioServer{Name: strings.TrimSpace(e.mustText("name", maxNameText))}
	if len(e.errs.list) == before && !mcpName.MatchString(s.Name) {
		e.rule("name", "Server name can only contain letters, numbers, hyphens, and underscores")
	}
	before = len(e.errs.list)
	s.Command = strings.TrimSpace(e.mustText("command", maxText))
	if len(e.errs.list) == before && (s.Command == "" || strings.ContainsAny(s.Command, " \t\r\n")) {
		e.rule("command", "Command must be a single executable without spaces")
	}
	s.Args = readMCPArgs(e)
	s.Env = readMCPEnv(e)
	return s
}

// readMCPArgs reads a list of texts, or one text that is split as a shell
// would.
func readMCPArgs(e object) []string {
	if line, ok := e.value("args").(string); ok {
		args, err := shlex.Split(line)
		if err != nil {
			e.rule("args", "Invalid argument format: unbalanced quotes")
		}
		return orEmpty(args)
	}
	if !e.notNull("args", kindList) {
		return []string{}
	}
	return orEmpty(e.texts("args", maxText))
}

// readMCPEnv reads a map of texts, or one text "K=V,K2=V2".
func readMCPEnv(e object) map[string]string {
	env := map[string]string{}
	if line, ok := e.value("env").(string); ok {
		for _, pair := range strings.Split(line, ",") {
			if strings.TrimSpace(pair) == "" {
				continue
			}
			k, v, found := strings.Cut(pair, "=")
			if k = strings.TrimSpace(k); !found || k == "" {
				e.rule("env", "Environment variables must be in KEY=VALUE format")
				return env
			}
			env[k] = strings.TrimSpace(v)
		}
		return env
	}
	if !e.notNull("env", kindDict) {
		return env
	}
	dict, ok := e.dict("env")
	if !ok {
		return env
	}
	return dict.textMap(maxText)
}

// textMap reads a map from texts to texts.
func (o object) textMap(limit int) map[string]string {
	out := make(map[string]string, len(o.m))
	for _, k := range sortedKeys(o.m) {
		if len(k) > maxNameText {
			o.errs.add("string_too_long", at(o.loc, truncate(k, 64), "[key]"), tooLongText(maxNameText).msg, masked,
				tooLongText(maxNameText).ctx)
			continue
		}
		if !o.notNull(k, kindString) {
			continue
		}
		if v := o.text(k, limit); v != nil {
			out[k] = *v
		}
	}
	return out
}

// rule notes a broken custom rule of a member.
func (o object) rule(name, text string) {
	o.errs.value(at(o.loc, name), text, echo(o.value(name), o.secret))
}
