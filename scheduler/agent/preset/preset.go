// Package preset has, as data, the agents whose command lines are known and the vendors of models.
// Package acp runs the agents; the API and the command line check specs with them. The engines and
// the model gateway find a model's server by the vendors. It imports nothing of ours.
package preset

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Preset is an agent whose command line is known. The command, the arguments, the values of Env
// and SessionMode may have placeholders, which the engine fills in (Check).
type Preset struct {
	// ID is what a spec, the settings and a start request call the agent.
	ID          string
	DisplayName string
	// Command is a program on the sandbox's PATH.
	Command string
	Args    []string
	Env     map[string]string
	// SessionMode is set after the session began, where the agent offers it. Empty keeps its own.
	SessionMode string
	// AuthMethod is authenticated with before the session, where the agent offers it.
	AuthMethod string
	// Package is the npm package that has the program, with the version that was tried.
	Package string
}

// opencodeConfig asks for OpenCode's permissions only where somebody answers.
const opencodeConfig = `{"model":"sandbox/{{llm_model}}","small_model":"sandbox/{{llm_model}}",` +
	`"share":"disabled","autoupdate":false,` +
	`"enabled_providers":["sandbox"],"permission":{"edit":"{{ask?ask:allow}}","bash":"{{ask?ask:allow}}",` +
	`"webfetch":"{{ask?ask:allow}}"},` +
	`"provider":{"sandbox":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"{{llm_base_url}}",` +
	`"apiKey":"{{llm_api_key}}"},` +
	`"models":{"{{llm_model}}":{"tool_call":true}}}}}`

const codexProvider = `model_providers.sandbox={name="sandbox",base_url="{{llm_base_url}}",` +
	`env_key="CODEX_SANDBOX_KEY",wire_api="responses"}`

// All returns the agents whose command lines are known, in the order to show them. What they
// look up on the internet by themselves is switched off. The caller may change the result.
func All() []Preset {
	return []Preset{
		{
			ID: "opencode", DisplayName: "OpenCode", Command: "opencode", Args: []string{"acp"},
			Env: map[string]string{
				"OPENCODE_CONFIG_CONTENT": opencodeConfig, "OPENCODE_DISABLE_MODELS_FETCH": "1",
				"OPENCODE_DISABLE_LSP_DOWNLOAD": "true",
				"XDG_DATA_HOME":                 "{{data_dir}}",
			},
			Package: "opencode-linux-x64@1.18.33",
		},
		{
			ID: "codex", DisplayName: "Codex", Command: "codex-acp",
			Args: []string{
				"-c", `model="{{llm_model}}"`, "-c", `model_provider="sandbox"`, "-c", codexProvider,
				"-c", `sandbox_mode="danger-full-access"`, "-c", `approval_policy="{{ask?untrusted:never}}"`,
				// A snapshot of the shell would put the key into a file, and a shell has no use for it.
				"-c", `features.shell_snapshot=false`, "-c", `shell_environment_policy.exclude=["CODEX_SANDBOX_KEY"]`,
			},
			Env:     map[string]string{"CODEX_HOME": "{{data_dir}}", "CODEX_SANDBOX_KEY": "{{llm_api_key}}"},
			Package: "@zed-industries/codex-acp-linux-x64@0.16.0",
		},
		{
			ID: "claude-code", DisplayName: "Claude Code", Command: "claude-agent-acp",
			Env: map[string]string{
				"ANTHROPIC_API_KEY": "{{llm_api_key}}", "ANTHROPIC_BASE_URL": "{{llm_anthropic_url}}",
				"ANTHROPIC_MODEL":            "{{llm_model}}",
				"ANTHROPIC_SMALL_FAST_MODEL": "{{llm_model}}", "CLAUDE_CONFIG_DIR": "{{data_dir}}",
				"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
			},
			SessionMode: "{{ask?default:bypassPermissions}}", Package: "@agentclientprotocol/claude-agent-acp@0.49.0",
		},
		{
			ID: "gemini-cli", DisplayName: "Gemini CLI", Command: "gemini", Args: []string{"--acp", "--model", "{{llm_model}}"},
			Env: map[string]string{
				"GEMINI_API_KEY": "{{llm_api_key}}", "GOOGLE_GEMINI_BASE_URL": "{{llm_gemini_url}}",
				"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_CLI_HOME": "{{data_dir}}",
			},
			SessionMode: "{{ask?default:yolo}}", AuthMethod: "gemini-api-key", Package: "@google/gemini-cli@0.61.0",
		},
		{
			ID: "qwen-code", DisplayName: "Qwen Code", Command: "qwen", Args: []string{"--acp"},
			Env: map[string]string{
				"OPENAI_API_KEY": "{{llm_api_key}}", "OPENAI_BASE_URL": "{{llm_base_url}}", "OPENAI_MODEL": "{{llm_model}}",
			},
			SessionMode: "{{ask?default:yolo}}", AuthMethod: "openai", Package: "@qwen-code/qwen-code@0.15.10",
		},
	}
}

// ByID returns the preset of an id.
func ByID(id string) (Preset, bool) {
	list := All()
	if i := slices.IndexFunc(list, func(p Preset) bool { return p.ID == id }); i >= 0 {
		return list[i], true
	}
	return Preset{}, false
}

// IDs names the presets, for messages.
func IDs() string {
	var ids []string
	for _, p := range All() {
		ids = append(ids, p.ID)
	}
	return strings.Join(ids, ", ")
}

// Placeholders names what may stand between {{ and }} in a command line, beside ask?yes:no, which
// depends on whether the confirmation policy may ask.
func Placeholders() []string {
	return []string{"data_dir", "llm_anthropic_url", "llm_api_key", "llm_base_url", "llm_gemini_url", "llm_model"}
}

var (
	braces = regexp.MustCompile(`\{\{[^{}]*\}\}`)                //nolint:gochecknoglobals // compiled once, read-only
	choice = regexp.MustCompile(`^\{\{ask\?[^:{}]*:[^{}]*\}\}$`) //nolint:gochecknoglobals // compiled once, read-only
)

// Check returns an error for what looks like a placeholder and is none.
func Check(text string) error {
	for _, m := range braces.FindAllString(text, -1) {
		if !choice.MatchString(m) && !slices.Contains(Placeholders(), m[2:len(m)-2]) {
			return fmt.Errorf("there is no placeholder %s: there are ask?yes:no, %s", m, strings.Join(Placeholders(), ", "))
		}
	}
	return nil
}

// CheckAgent returns an error for an agent without a command whose id is no preset's, and for a
// placeholder that there is not in its texts.
func CheckAgent(id, command string, texts []string) error {
	if _, known := ByID(id); !known && command == "" {
		return fmt.Errorf("the agent %q needs a command: only %s have one of their own", id, IDs())
	}
	for _, text := range texts {
		if err := Check(text); err != nil {
			return fmt.Errorf("the agent %q: %w", id, err)
		}
	}
	return nil
}
