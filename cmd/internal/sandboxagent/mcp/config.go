package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// config is one server of mcp_config.
type config struct {
	name    string
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
	URL     string            `json:"url"`
	// Transport, or Type in other clients' files, is stdio, sse, http or streamable-http.
	Transport string            `json:"transport"`
	Type      string            `json:"type"`
	Headers   map[string]string `json:"headers"`
	// Timeout bounds a call, in seconds.
	Timeout  float64 `json:"timeout"`
	Disabled bool    `json:"disabled"`
}

// maxServers bounds the servers of a conversation.
const maxServers = 50

// read reads the servers of {"mcpServers":{…}}, or of the object in it, by name. A server that can't
// be used is a failure.
func read(raw json.RawMessage) (list []config, failures []Failure) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var servers map[string]json.RawMessage
	if err := json.Unmarshal(raw, &servers); err != nil {
		return nil, []Failure{{Err: errors.New("mcp_config is not an object of servers by name")}}
	}
	if inner, ok := servers["mcpServers"]; ok {
		servers = nil
		if err := json.Unmarshal(inner, &servers); err != nil {
			return nil, []Failure{{Err: errors.New("mcp_config.mcpServers is not an object of servers by name")}}
		}
	}
	for i, name := range slices.Sorted(maps.Keys(servers)) {
		var c config
		err := json.Unmarshal(servers[name], &c)
		if err != nil {
			err = errors.New("its configuration can't be read") // the text may quote a key
		}
		if c.name = name; err == nil {
			err = c.check()
		}
		switch {
		case i >= maxServers:
			failures = append(failures, Failure{name, fmt.Errorf("there are more than %d servers", maxServers)})
		case err != nil:
			failures = append(failures, Failure{name, err})
		case !c.Disabled:
			list = append(list, c)
		}
	}
	return list, failures
}

// kind is stdio, sse or http.
func (c config) kind() string {
	switch kind := strings.ToLower(cmp.Or(c.Transport, c.Type)); {
	case kind == "sse":
		return "sse"
	case c.Command != "":
		return "stdio"
	}
	return "http"
}

func (c config) check() error {
	switch strings.ToLower(cmp.Or(c.Transport, c.Type)) {
	case "", "stdio", "sse", "http", "shttp", "streamable-http", "streamable_http":
	default:
		return fmt.Errorf("there is no transport %q: use stdio, sse or streamable-http", cmp.Or(c.Transport, c.Type))
	}
	if c.kind() == "stdio" {
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("it needs a command, or an url that begins with http:// or https://")
	}
	return nil
}

// callTime is how long a call may take.
func (c config) callTime(otherwise time.Duration) time.Duration {
	if c.Timeout > 0 && c.Timeout <= (24*time.Hour).Seconds() {
		return time.Duration(c.Timeout * float64(time.Second))
	}
	return otherwise
}

// secrets are the values of the configuration that must not be shown.
func (c config) secrets() map[string]string {
	out := map[string]string{}
	for name, v := range c.Headers {
		out["header "+name] = v
		if _, token, ok := strings.Cut(v, " "); ok {
			out["token "+name] = strings.TrimSpace(token)
		}
	}
	for name, v := range c.Env {
		up := strings.ToUpper(name)
		if slices.ContainsFunc([]string{"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH"},
			func(part string) bool { return strings.Contains(up, part) }) {
			out["variable "+name] = v
		}
	}
	if u, err := url.Parse(c.URL); err == nil {
		if password, ok := u.User.Password(); ok {
			out["password"] = password
		}
		for name, values := range u.Query() {
			for i, v := range values {
				if len(v) >= 8 {
					out[fmt.Sprint("query ", name, i)] = v
				}
			}
		}
	}
	for name, v := range out {
		if len(v) < 6 {
			delete(out, name) // to hide "true" would spoil every text
		}
	}
	return out
}
