// Package config has the agent server's configuration: from the environment, from POST /api/init, and
// the user that commands run as.
package config

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/scheduler/agent"
)

// Config configures the server. FromEnv reads it from the variables of
// PROTOCOL.md, "Environment".
type Config struct {
	// Host is the address to bind. Empty means all addresses with a key and 127.0.0.1 without.
	Host string
	// Port is the port to bind; 0 means a free one.
	Port int
	// Keys are the accepted session keys. Without any, the server needs no authentication.
	Keys []string
	// SecretKey encrypts the conversations' secrets on disk. If empty, they are not stored.
	SecretKey string
	// ConversationsPath is the directory of the conversations.
	ConversationsPath string
	// BashEventsDir is the directory of the command ids, by which a restarted server recognises
	// commands that the restart killed. If empty, they are only in memory.
	BashEventsDir string
	// Environ is the environment that commands and agents inherit, and has the user's HOME;
	// nil is this process's.
	Environ []string
	// Env is added to the commands' environment. Its values may be secret.
	Env map[string]string
	// Deferred makes the server start dormant and wait for POST /api/init.
	Deferred bool
	// CORSOrigins are the allowed web origins besides localhost.
	CORSOrigins []string
	// Version is what /server_info and --version report.
	Version string
	// APIURLs are the nodes' URLs as the sandbox reaches them, in the order to try them.
	APIURLs []string
	// Webhooks are the base URLs to which conversations are sent, tried in turn.
	Webhooks []string
	// MaxRuns is how many conversations run at once; 0 is 10.
	MaxRuns int
	// EndBrokenRuns ends as error the runs that a restart broke off, instead of going on with them.
	EndBrokenRuns bool
	// ToolsUser is the user that commands and agents run as where UseToolsUser may change users.
	ToolsUser string
	// Logger gets one line per request, at debug; nil discards.
	Logger *slog.Logger

	// NewEngine makes the conversations' engines; nil makes those that this program has.
	NewEngine func(engine.Setup, engine.Conversation) (engine.Engine, error)
	// Tools is ToolsUser, once it is in use; nil is this process's own.
	Tools *syscall.Credential
}

// Environment variables and defaults. Those that hold keys are not passed to commands.
const (
	envKeys       = "OH_SESSION_API_KEYS"
	envLegacyKey  = "SESSION_API_KEY"
	EnvSecretKey  = "OH_SECRET_KEY"
	envPath       = "OH_CONVERSATIONS_PATH"
	envBashDir    = "OH_BASH_EVENTS_DIR"
	envDeferred   = "OH_DEFERRED_INIT"
	envCORS       = "OH_ALLOW_CORS_ORIGINS"
	envRuns       = "OH_MAX_CONCURRENT_RUNS"
	envResumeRuns = "BIVOUAC_RESUME_RUNS"
	envToolsUser  = "BIVOUAC_TOOLS_USER"
	envWebhook    = "OH_WEBHOOKS_0_BASE_URL"
	defaultPath   = "workspace/conversations"
	DefaultPort   = 8000
	maxListedVars = 100
)

// FromEnv reads "NAME=value" pairs as os.Environ returns them. A key that is set but empty is
// an error: the key was not passed correctly, and without it the server would need no
// authentication.
func FromEnv(environ []string) (Config, error) {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok {
			env[name] = value
		}
	}
	cfg := Config{Port: DefaultPort, ConversationsPath: defaultPath, SecretKey: env[EnvSecretKey],
		BashEventsDir: env[envBashDir],
		ToolsUser:     env[envToolsUser], Environ: CommandEnv(environ, nil)}
	if p := env[envPath]; p != "" {
		cfg.ConversationsPath = p
	}
	var err error
	if cfg.Deferred, err = envBool(env, envDeferred); err != nil {
		return cfg, err
	}
	resume, err := envBool(env, envResumeRuns)
	if err != nil {
		return cfg, err
	}
	cfg.EndBrokenRuns = env[envResumeRuns] != "" && !resume
	if text := env[envRuns]; text != "" {
		if cfg.MaxRuns, err = strconv.Atoi(text); err != nil || cfg.MaxRuns < 1 {
			return cfg, fmt.Errorf("%s must be a number from 1 on, got %q", envRuns, text)
		}
	}
	keys, err := envList(env, envKeys)
	if err != nil {
		return cfg, err
	}
	if legacy, ok := env[envLegacyKey]; len(keys) == 0 && ok {
		keys = []string{legacy}
	}
	if slices.Contains(keys, "") {
		return cfg, errors.New("a session key is set but empty: refusing to serve without a key")
	}
	cfg.Keys = keys
	if cfg.APIURLs, err = envList(env, agent.EnvAPIURLs); err != nil {
		return cfg, err
	}
	cfg.Webhooks = webhookBases(env[envWebhook], cfg.APIURLs)
	cfg.CORSOrigins, err = envList(env, envCORS)
	return cfg, err
}

// webhookBases are upstream's one base, or those of the control plane's nodes.
func webhookBases(base string, nodes []string) (list []string) {
	if base != "" {
		return []string{base}
	}
	for _, node := range nodes {
		list = append(list, strings.TrimRight(node, "/")+"/api/v1/webhooks")
	}
	return list
}

// envList reads NAME (a JSON list), then NAME_0, NAME_1, … up to the first one that is not set.
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

// envBool reads 1, true, yes, on and their opposites, in any case. Unset and empty are false.
func envBool(env map[string]string, name string) (bool, error) {
	switch strings.ToLower(env[name]) {
	case "1", "true", "yes", "on":
		return true, nil
	case "", "0", "false", "no", "off":
		return false, nil
	}
	return false, fmt.Errorf("%s must be a boolean, got %q", name, env[name])
}

// Validate reports what a server can't start with.
func (c Config) Validate() error {
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("port %d is not between 0 and 65535", c.Port)
	}
	if c.ConversationsPath == "" {
		return errors.New("the conversations path is empty")
	}
	if slices.Contains(c.Keys, "") {
		return errors.New("a session key is empty")
	}
	for _, s := range c.APIURLs {
		if u, err := url.Parse(s); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("%s: %q is no http or https URL", agent.EnvAPIURLs, s)
		}
	}
	return nil
}

// Home is the user's directory, "" if there is none.
func (c Config) Home() (dir string) {
	for _, kv := range c.Environ { // of duplicates the last counts, as for os/exec
		if value, ok := strings.CutPrefix(kv, "HOME="); ok {
			dir = value
		}
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	return dir
}

// containerWorkspace is where a container has its workspace. Clients name paths in it without asking.
const containerWorkspace = "/workspace"

// InWorkspace returns a path in a container's workspace as the same path in that of a server without a
// container, where the scheduler makes the workspace the home. Else a file would be sought, or made, in a
// directory of the machine.
func (c Config) InWorkspace(p string) string {
	dir := filepath.Dir(c.ConversationsPath)
	below, in := strings.CutPrefix(filepath.Clean(p), containerWorkspace)
	if dir != c.Home() || dir == containerWorkspace || !in || below != "" && below[0] != '/' {
		return p
	}
	return filepath.Join(dir, below)
}

// BindHost returns the host to bind. Without a key it is never all addresses unless Host says so. A
// dormant server's key is the one that POST /api/init requires.
func (c Config) BindHost() string {
	switch {
	case c.Host != "":
		return c.Host
	case len(c.Keys) == 0 && (!c.Deferred || c.SecretKey == ""):
		return "127.0.0.1"
	default:
		return "0.0.0.0"
	}
}

// KeyFits reports whether a key is one of the server's, or none is required. It compares with every
// key in constant time.
func (c Config) KeyFits(key string) bool {
	if len(c.Keys) == 0 {
		return true
	}
	got := sha256.Sum256([]byte(key))
	ok := 0
	for _, k := range c.Keys {
		want := sha256.Sum256([]byte(k))
		ok |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return ok == 1
}

// Listen binds the address.
func (c Config) Listen() (net.Listener, error) {
	addr := net.JoinHostPort(c.BindHost(), strconv.Itoa(c.Port))
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("binding %s: %w", addr, err)
	}
	return ln, nil
}

// MakeConversationsPath makes the directory of the conversations, and its path absolute.
func (c *Config) MakeConversationsPath() error {
	dir, err := filepath.Abs(c.ConversationsPath)
	if err != nil {
		return fmt.Errorf("conversations path: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the conversations path: %w", err)
	}
	c.ConversationsPath = dir
	return nil
}
