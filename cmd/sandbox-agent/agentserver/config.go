package agentserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// Config is what the server needs to know; ConfigFromEnv reads it from the
// variables of api-contract.md C.2.
type Config struct {
	// Host is the address to bind; empty means all of them with a key and
	// 127.0.0.1 without.
	Host string
	// Port is the port to bind; 0 takes a free one.
	Port int
	// Keys are the accepted session keys. With none the server is open.
	Keys []string
	// SecretKey seals the secrets of conversations on disk. Empty: they are
	// not kept.
	SecretKey string
	// ConversationsPath is where conversations are kept.
	ConversationsPath string
	// BashEventsDir is where the ids of commands are kept, so that one a
	// restart has ended is known to be; empty: in memory only.
	BashEventsDir string
	// Env is added to the environment of commands; its values may be secret.
	Env map[string]string
	// Deferred: come up dormant and wait for POST /api/init.
	Deferred bool
	// CORSOrigins are the web origins allowed beside localhost.
	CORSOrigins []string
	// Version is told by /server_info and --version.
	Version string
	// Logger gets one line a request, at debug level; nil discards.
	Logger *slog.Logger
}

// The names of the environment variables that hold keys; commands run for a
// client don't get them.
const (
	envKeys       = "OH_SESSION_API_KEYS"
	envLegacyKey  = "SESSION_API_KEY"
	envSecretKey  = "OH_SECRET_KEY"
	envPath       = "OH_CONVERSATIONS_PATH"
	envBashDir    = "OH_BASH_EVENTS_DIR"
	envDeferred   = "OH_DEFERRED_INIT"
	envCORS       = "OH_ALLOW_CORS_ORIGINS"
	defaultPath   = "workspace/conversations"
	defaultPort   = 8000
	maxListedVars = 100
)

// ConfigFromEnv reads "NAME=value" pairs as os.Environ gives them. A key that
// is set but empty is an error: it means that handing over the key failed, and
// the server would be open without anyone wanting it.
func ConfigFromEnv(environ []string) (Config, error) {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	cfg := Config{Port: defaultPort, ConversationsPath: defaultPath, SecretKey: env[envSecretKey], BashEventsDir: env[envBashDir]}
	if p := env[envPath]; p != "" {
		cfg.ConversationsPath = p
	}
	var err error
	if cfg.Deferred, err = envBool(env, envDeferred); err != nil {
		return cfg, err
	}
	keys, err := envList(env, envKeys)
	if err != nil {
		return cfg, err
	}
	if legacy, ok := env[envLegacyKey]; len(keys) == 0 && ok {
		keys = []string{legacy}
	}
	for _, k := range keys {
		if k == "" {
			return cfg, errors.New("a session key is set but empty: refusing to serve without a key")
		}
	}
	cfg.Keys = keys
	cfg.CORSOrigins, err = envList(env, envCORS)
	return cfg, err
}

// envList reads NAME (a JSON list) followed by NAME_0, NAME_1, … up to the
// first that is absent.
func envList(env map[string]string, name string) ([]string, error) {
	var list []string
	if v := env[name]; v != "" {
		if err := json.Unmarshal([]byte(v), &list); err != nil {
			return nil, fmt.Errorf("%s must be a JSON list of strings", name)
		}
	}
	for i := range maxListedVars {
		v, ok := env[name+"_"+strconv.Itoa(i)]
		if !ok {
			break
		}
		list = append(list, v)
	}
	return list, nil
}

// envBool reads 1, true, yes or on, and their opposites, in any case; absent
// and empty are false.
func envBool(env map[string]string, name string) (bool, error) {
	switch strings.ToLower(env[name]) {
	case "1", "true", "yes", "on":
		return true, nil
	case "", "0", "false", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("%s must be a boolean, got %q", name, env[name])
}

func (c Config) validate() error {
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("port %d is not between 0 and 65535", c.Port)
	}
	if c.ConversationsPath == "" {
		return errors.New("the conversations path is empty")
	}
	for _, k := range c.Keys {
		if k == "" {
			return errors.New("a session key is empty")
		}
	}
	return nil
}

// bindHost gives the host to bind: never all addresses without a key, unless
// that was asked for. A dormant server's key is the one POST /api/init needs.
func (c Config) bindHost() string {
	switch {
	case c.Host != "":
		return c.Host
	case len(c.Keys) == 0 && (!c.Deferred || c.SecretKey == ""):
		return "127.0.0.1"
	default:
		return "0.0.0.0"
	}
}
