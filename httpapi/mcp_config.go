package httpapi

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/google/shlex"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/decode"
	"bivouac.dev/bivouac/httpapi/wire"
)

// defaultMCPTimeout is upstream's default for HTTP MCP servers, in seconds.
const defaultMCPTimeout = 60

// mcpName is the pattern of a stdio server's name.
var mcpName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// readMCPConfig reads the member mcp_config; nil if absent or null.
func readMCPConfig(o decode.Object) *fsm.MCPConfig {
	m, ok := o.Masked().Object("mcp_config")
	if !ok {
		return nil
	}
	m.Strict("sse_servers", "stdio_servers", "shttp_servers")
	c := &fsm.MCPConfig{
		SSEServers:   []fsm.MCPSSEServer{},
		StdioServers: []fsm.MCPStdioServer{},
		SHTTPServers: []fsm.MCPHTTPServer{},
	}
	for _, e := range m.Elements("sse_servers", true) {
		c.SSEServers = append(c.SSEServers, fsm.MCPSSEServer{URL: readMCPURL(e), APIKey: e.Text("api_key", fsm.MaxParagraph)})
	}
	for _, e := range m.Elements("shttp_servers", true) {
		c.SHTTPServers = append(c.SHTTPServers, fsm.MCPHTTPServer{
			URL: readMCPURL(e), APIKey: e.Text("api_key", fsm.MaxParagraph), Timeout: readMCPTimeout(e),
		})
	}
	for _, e := range m.Elements("stdio_servers", false) {
		c.StdioServers = append(c.StdioServers, readMCPStdio(e))
	}
	return c
}

func readMCPURL(e decode.Object) string {
	before := len(e.Problems.List)
	s := strings.TrimSpace(e.MustText("url", fsm.MaxParagraph))
	if len(e.Problems.List) > before {
		return ""
	}
	u, err := url.Parse(s)
	switch {
	case s == "":
		e.Rule("url", "URL cannot be empty")
	case err != nil || u.Host == "":
		e.Rule("url", "URL must have a scheme and a host")
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "ws" && u.Scheme != "wss":
		e.Rule("url", "URL scheme must be http, https, ws, or wss")
	}
	return s
}

func readMCPTimeout(e decode.Object) *int64 {
	if !e.Has("timeout") {
		n := int64(defaultMCPTimeout)
		return &n
	}
	n := e.Integer("timeout")
	if n != nil && (*n < 1 || *n > 3600) {
		e.Rule("timeout", "Timeout must be between 1 and 3600 seconds")
	}
	return n
}

func readMCPStdio(e decode.Object) fsm.MCPStdioServer {
	before := len(e.Problems.List)
	s := fsm.MCPStdioServer{Name: strings.TrimSpace(e.MustText("name", fsm.MaxName))}
	if len(e.Problems.List) == before && !mcpName.MatchString(s.Name) {
		e.Rule("name", "Server name can only contain letters, numbers, hyphens, and underscores")
	}
	before = len(e.Problems.List)
	s.Command = strings.TrimSpace(e.MustText("command", fsm.MaxParagraph))
	if len(e.Problems.List) == before && (s.Command == "" || strings.ContainsAny(s.Command, " \t\r\n")) {
		e.Rule("command", "Command must be a single executable without spaces")
	}
	s.Args = readMCPArgs(e)
	s.Env = readMCPEnv(e)
	return s
}

// readMCPArgs reads a list of strings, or one string that is split as a shell does.
func readMCPArgs(e decode.Object) []string {
	if line, ok := e.Value("args").(string); ok {
		args, err := shlex.Split(line)
		if err != nil {
			e.Rule("args", "Invalid argument format: unbalanced quotes")
		}
		return wire.OrEmpty(args)
	}
	if !e.NotNull("args", decode.KindList) {
		return []string{}
	}
	return wire.OrEmpty(e.Texts("args", fsm.MaxParagraph))
}

// readMCPEnv reads a map of strings, or one string "K=V,K2=V2".
func readMCPEnv(e decode.Object) map[string]string {
	env := map[string]string{}
	if line, ok := e.Value("env").(string); ok {
		for _, pair := range strings.Split(line, ",") {
			if strings.TrimSpace(pair) == "" {
				continue
			}
			k, v, found := strings.Cut(pair, "=")
			if k = strings.TrimSpace(k); !found || k == "" {
				e.Rule("env", "Environment variables must be in KEY=VALUE format")
				return env
			}
			env[k] = strings.TrimSpace(v)
		}
		return env
	}
	if !e.NotNull("env", decode.KindDict) {
		return env
	}
	dict, ok := e.Dict("env")
	if !ok {
		return env
	}
	return dict.TextMap(fsm.MaxName, fsm.MaxParagraph)
}
