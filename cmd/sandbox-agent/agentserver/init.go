package agentserver

import (
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
)

// initPath is where a dormant server is told what it is for.
const initPath = "/api/init"

// maxInitBody bounds the body of POST /api/init.
const maxInitBody = 1 << 20

// initMembers are the members POST /api/init knows (api-contract.md C.2).
// Those this server has no use for are checked and left at that.
func initMembers() []string {
	return []string{
		"session_api_keys", "secret_key", "conversations_path", "bash_events_dir", "conversation_worktree_root", "webhooks",
		"web_url", "allow_cors_origins", "max_concurrent_runs", "env", "telemetry",
	}
}

// initConfig reads the body over base, whose values stay where the body says
// nothing. When it answers false it has written the error.
func initConfig(w http.ResponseWriter, r *http.Request, base Config) (Config, bool) {
	r.Body = http.MaxBytesReader(w, r.Body, maxInitBody)
	m := readObject(w, r)
	if m == nil {
		return base, false
	}
	d := initReader{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(initMembers(), name) {
			d.fail("extra_forbidden", "Extra inputs are not permitted", nil, name)
		}
	}
	cfg := d.config(m, base)
	if len(d.errs) > 0 {
		writeInvalid(w, d.errs)
		return base, false
	}
	return cfg, true
}

// initReader never shows a value again: most of them are secret.
type initReader struct{ reader }

func (d *initReader) config(m map[string]any, cfg Config) Config {
	cfg.Deferred = false
	if keys := d.texts(m, "session_api_keys"); keys != nil {
		cfg.Keys = keys
	}
	for i, k := range cfg.Keys {
		if k == "" {
			d.value("a session key must not be empty", nil, "session_api_keys", strconv.Itoa(i))
		}
	}
	if len(cfg.Keys) == 0 && !isLoopback(cfg.Host) {
		d.value("a session key is required: the server can be reached from outside", nil, "session_api_keys")
	}
	if s := d.text(m, "secret_key"); s != nil && *s != "" {
		cfg.SecretKey = *s
	}
	if p := d.path(m, "conversations_path"); p != "" {
		cfg.ConversationsPath = p
	}
	if p := d.path(m, "bash_events_dir"); p != "" {
		cfg.BashEventsDir = p
	}
	if origins := d.texts(m, "allow_cors_origins"); origins != nil {
		cfg.CORSOrigins = origins
	}
	cfg.Env = d.env(m)
	d.unused(m)
	return cfg
}

// unused checks the members that have no use here.
func (d *initReader) unused(m map[string]any) {
	d.text(m, "conversation_worktree_root")
	d.text(m, "web_url")
	d.positive(m, "max_concurrent_runs", 1)
	for i, v := range d.list(m, "webhooks") {
		if _, ok := v.(map[string]any); !ok {
			d.fail("model_attributes_type", "Input should be a valid dictionary or object to extract fields from", nil, "webhooks", strconv.Itoa(i))
		}
	}
}

func (d *initReader) text(m map[string]any, name string) *string {
	if v, ok := m[name]; ok && v != nil {
		if _, isText := v.(string); !isText {
			d.fail("string_type", "Input should be a valid string", nil, name)
			return nil
		}
	}
	return d.str(m, name)
}

// texts reads an optional list of strings; nil for absent and null.
func (d *initReader) texts(m map[string]any, name string) []string {
	list := d.list(m, name)
	if list == nil {
		return nil
	}
	out := make([]string, 0, len(list))
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			d.fail("string_type", "Input should be a valid string", nil, name, strconv.Itoa(i))
		}
		out = append(out, s)
	}
	return out
}

func (d *initReader) path(m map[string]any, name string) string {
	p := d.text(m, name)
	if p == nil || *p == "" {
		return ""
	}
	return filepath.Clean(*p)
}

func (d *initReader) env(m map[string]any) map[string]string {
	out := map[string]string{}
	for name, v := range d.object(m, "env") {
		s, ok := v.(string)
		if !ok {
			d.fail("string_type", "Input should be a valid string", nil, "env", name)
		}
		out[name] = s
	}
	return out
}

// isLoopback reports whether only this machine reaches the host. An empty one
// is decided by bindHost; by then a key must be there.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
