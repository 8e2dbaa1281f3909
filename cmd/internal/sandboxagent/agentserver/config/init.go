package config

import (
	"net"
	"net/http"
	"path/filepath"
	"strconv"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/agentserver/wire"
	"bivouac.dev/bivouac/httpapi/decode"
)

// InitPath is the path that initialises a dormant server.
const InitPath = "/api/init"

// maxInitBody limits the body of POST /api/init, in bytes.
const maxInitBody = 1 << 20

// initMembers are the known members of POST /api/init (PROTOCOL.md, "Warm members"). Those that
// this server does not use are only validated.
func initMembers() []string {
	return []string{
		"session_api_keys", "secret_key", "conversations_path", "bash_events_dir", "conversation_worktree_root", "webhooks",
		"web_url", "allow_cors_origins", "max_concurrent_runs", "env", "telemetry",
	}
}

// FromInit applies the body to base, which keeps what the body does not set. If it returns false
// it has responded with the error.
func FromInit(w http.ResponseWriter, r *http.Request, base Config) (Config, bool) {
	r.Body = http.MaxBytesReader(w, r.Body, maxInitBody)
	o, ok := wire.ReadObject(w, r)
	if !ok {
		return base, false
	}
	o = o.Masked() // most of the values are secret
	o.Strict(initMembers()...)
	cfg := readInit(o, base)
	return cfg, !wire.Refused(w, o)
}

func readInit(o decode.Object, cfg Config) Config {
	cfg.Deferred = false
	if keys := o.Texts("session_api_keys", wire.MaxText); keys != nil {
		cfg.Keys = keys
	}
	for i, k := range cfg.Keys {
		if k == "" {
			o.Problems.Value(decode.At(o.Loc, "session_api_keys", strconv.Itoa(i)), "a session key must not be empty", nil)
		}
	}
	if len(cfg.Keys) == 0 && !isLoopback(cfg.Host) {
		o.Rule("session_api_keys", "a session key is required: the server can be reached from outside")
	}
	if s := o.Text("secret_key", wire.MaxText); s != nil && *s != "" {
		cfg.SecretKey = *s
	}
	if p := o.Text("conversations_path", wire.MaxText); p != nil && *p != "" {
		cfg.ConversationsPath = filepath.Clean(*p)
	}
	if p := o.Text("bash_events_dir", wire.MaxText); p != nil && *p != "" {
		cfg.BashEventsDir = filepath.Clean(*p)
	}
	if origins := o.Texts("allow_cors_origins", wire.MaxText); origins != nil {
		cfg.CORSOrigins = origins
	}
	cfg.Env = map[string]string{}
	if env, ok := o.Object("env"); ok {
		cfg.Env = env.TextMap(wire.MaxName, wire.MaxText)
	}
	checkUnused(o)
	return cfg
}

// checkUnused validates members that this server does not use.
func checkUnused(o decode.Object) {
	o.Text("conversation_worktree_root", wire.MaxText)
	o.Text("web_url", wire.MaxText)
	wire.Positive(o, "max_concurrent_runs", 1)
	if o.Value("webhooks") != nil {
		o.Elements("webhooks", false)
	}
}

// isLoopback reports whether only this machine can reach the host. An empty host is not loopback,
// so it requires a key.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
