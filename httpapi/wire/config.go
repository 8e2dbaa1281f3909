package wire

// Config is the cluster's configuration, in the blocks of a node's file.
type Config struct {
	// Index is the log index at which it last changed.
	Index  uint64       `json:"index"`
	Policy Policy       `json:"policy"`
	Limits ConfigLimits `json:"limits"`
	Git    ConfigGit    `json:"git"`
	CORS   ConfigCORS   `json:"cors"`
	// LLM is nil in a cluster below fsm.VersionModels, which does not keep it.
	LLM *ConfigLLM `json:"llm,omitempty"`
}

// ConfigLimits are the limits of each user and of the installation.
type ConfigLimits struct {
	User         Limits `json:"user"`
	Installation Limits `json:"installation"`
	OnLimit      string `json:"on_limit"`
}

// ConfigGit configures the checks with git providers.
type ConfigGit struct {
	VerifyTokens bool     `json:"verify_tokens"`
	AllowedHosts []string `json:"allowed_hosts"`
}

// ConfigCORS has the web origins that may call the API with credentials; none is any port of the
// loopback.
type ConfigCORS struct {
	Origins []string `json:"origins"`
}

// ConfigLLM configures the model gateway.
type ConfigLLM struct {
	Gateway bool          `json:"gateway"`
	Hosts   []string      `json:"hosts"`
	Models  []string      `json:"models"`
	Prices  []ConfigPrice `json:"prices"`
	Budgets ConfigBudgets `json:"budgets"`
}

// ConfigPrice is a price in US dollars for a million tokens. What is null is Input.
type ConfigPrice struct {
	Model       string   `json:"model"`
	Input       float64  `json:"input"`
	Output      float64  `json:"output"`
	CachedInput *float64 `json:"cached_input"`
	CacheWrite  *float64 `json:"cache_write"`
}

// ConfigBudgets are budgets in US dollars; 0 is none.
type ConfigBudgets struct {
	PerTask    float64 `json:"per_task"`
	PerUserDay float64 `json:"per_user_day"`
}
