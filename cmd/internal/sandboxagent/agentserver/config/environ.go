package config

import "strings"

// CommandEnv is the server's environment plus more, without the server's keys.
func CommandEnv(environ []string, more map[string]string) []string {
	var out []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if isKeyVariable(name) {
			continue
		}
		out = append(out, kv)
	}
	for name, value := range more { // of duplicates os/exec uses the last
		if !isKeyVariable(name) {
			out = append(out, name+"="+value)
		}
	}
	return out
}

func isKeyVariable(name string) bool {
	return name == EnvSecretKey || name == envLegacyKey || strings.HasPrefix(name, envKeys)
}
