package nomad

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"path"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// The variables of the agent server that a spec can't set (PROTOCOL.md, "Environment").
const (
	envKeys      = "OH_SESSION_API_KEYS"
	envKey       = envKeys + "_0"
	envOldKey    = "SESSION_API_KEY"
	envSecretKey = "OH_SECRET_KEY"
	envDeferred  = "OH_DEFERRED_INIT"
)

// envAPIURLs is the variable that has the nodes' URLs as the sandbox reaches them.
const envAPIURLs = "BIVOUAC_API_URLS"

// environment returns the variables of PROTOCOL.md, "Environment". The spec may choose where
// conversations and shell events are kept, but neither ports nor keys.
func environment(cfg Config, job scheduler.Job, dir string, text *strings.Replacer) map[string]string {
	env := map[string]string{
		"OH_CONVERSATIONS_PATH": path.Join(dir, "conversations"),
		"OH_BASH_EVENTS_DIR":    path.Join(dir, "bash_events"),
	}
	if job.Template.Driver == fsm.DriverRawExec {
		// Else it is the home of the Nomad client's user, which the sandboxes of all users would share.
		env["HOME"] = dir
	}
	maps.Copy(env, webhooks(cfg, job))
	for name, value := range job.Template.Env {
		env[name] = text.Replace(value)
	}
	maps.Copy(env, cfg.Env)
	for _, name := range portNames(job.Template) {
		env[name] = portValue(job.Template, name)
	}
	maps.DeleteFunc(env, func(name, _ string) bool { return reserved(name) })
	if job.Deferred {
		env[envDeferred] = "1"
	}
	return env
}

// webhooks tell upstream's agent server where to send each event at once; it adds its key itself. It knows
// one URL alone, so sandboxes are spread over the nodes. The built-in server knows all by envAPIURLs. A spec
// may say otherwise. Below fsm.VersionEvents it is set, too: a sandbox may run longer than that.
func webhooks(cfg Config, job scheduler.Job) map[string]string {
	var urls []string
	if !job.Template.IsUpstream() || json.Unmarshal([]byte(cfg.Env[envAPIURLs]), &urls) != nil ||
		len(urls) == 0 {
		return nil
	}
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, job.SandboxID)
	return map[string]string{
		"OH_WEBHOOKS_0_BASE_URL":          strings.TrimRight(urls[hash.Sum32()%uint32(len(urls))], "/") + "/api/v1/webhooks",
		"OH_WEBHOOKS_0_EVENT_BUFFER_SIZE": "1",
	}
}

// reserved reports whether a variable decides who may use the sandbox.
func reserved(name string) bool {
	return strings.HasPrefix(name, envKeys) || name == envOldKey || name == envSecretKey || name == envDeferred
}

// addKey adds a template by which the Nomad client puts the sandbox's keys into the task's
// environment. The client reads them from Vault as the task; the task itself gets no Vault token.
// A member of a warm pool gets no session key: the leader gives it one after the claim.
func addKey(cfg Config, job scheduler.Job, task *api.Task) *scheduler.Failure {
	entry, fail := vaultEntry(cfg, job)
	if fail != nil {
		return fail
	}
	data := fmt.Sprintf(`{{ with secret %q -}}
%s={{ .Data.data.key | toJSON }}
{{ if .Data.data.secret_key }}%s={{ .Data.data.secret_key | toJSON }}{{ end }}
{{- end }}
`, entry, envKey, envSecretKey)
	if job.Deferred {
		data = fmt.Sprintf("{{ with secret %q -}}\n%s={{ .Data.data.secret_key | toJSON }}\n{{ end }}\n", entry, envSecretKey)
	}
	// The key is needed only when the task starts. A token that is renewed would end the task
	// when its renewal and one login fail.
	task.Vault = &api.Vault{
		Role: cfg.VaultRole, Env: new(false), DisableFile: new(true), ChangeMode: new("noop"),
		AllowTokenExpiration: new(true),
	}
	task.Templates = []*api.Template{{
		EmbeddedTmpl: new(data), DestPath: new("secrets/session.env"), Envvars: new(true), ChangeMode: new("noop"),
		Perms: new("0600"), Once: new(true),
	}}
	return nil
}

// vaultEntry returns the path of the task's keys. The secret store keeps the entries
// "sandboxes/<id>/..." where only the sandbox's job may read them.
func vaultEntry(cfg Config, job scheduler.Job) (string, *scheduler.Failure) {
	leaf, ok := strings.CutPrefix(job.KeyRef.Path, fsm.SandboxSecrets(job.SandboxID))
	if !ok || leaf == "" {
		return "", &scheduler.Failure{
			Reason: fsm.ReasonSecretStore, Detail: fmt.Sprintf("the sandbox's key is at %q, where its job can't read it",
				job.KeyRef.Path),
		}
	}
	entry := fmt.Sprintf("%s/data/%s/%s/%s", cfg.VaultMount, cfg.namespace(), jobID(job.SandboxID), leaf)
	if job.KeyRef.Version > 0 {
		entry += "?version=" + strconv.Itoa(job.KeyRef.Version)
	}
	return entry, nil
}
