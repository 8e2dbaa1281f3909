package httpapi

import (
	"regexp"
	"strings"
)

// maskedPart stands where a part of a text was a credential.
const maskedPart = "****"

// Where credentials hide in the address of a plugin.
var (
	urlUserinfo = regexp.MustCompile(`://[^/?#\s]*@`)
	urlSecret   = regexp.MustCompile(`(?i)([?&;][^=&;#\s]*(?:token|key|secret|password|passwd|auth|credential|signature)[^=&;#\s]*=)[^&;#\s]*`)
)

// maskSource hides the credentials inside a plugin's source.
func maskSource(s string) string {
	s = urlUserinfo.ReplaceAllString(s, "://"+maskedPart+"@")
	return urlSecret.ReplaceAllString(s, "${1}"+maskedPart)
}

// looksSecret reports whether a member's name says that its value is a secret.
func looksSecret(name string) bool {
	name = strings.ToLower(name)
	for _, part := range []string{"token", "key", "secret", "password", "passwd", "auth", "credential", "cookie", "header"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// maskMembers copies a JSON object with the values of secret-looking members
// masked and the credentials inside addresses hidden.
func maskMembers(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		if looksSecret(k) && v != nil {
			out[k] = maskedPart
			continue
		}
		out[k] = maskValue(v)
	}
	return out
}

func maskValue(v any) any {
	switch t := v.(type) {
	case map[string]any:
		return maskMembers(t)
	case []any:
		out := make([]any, len(t))
		for i, e := range t {
			out[i] = maskValue(e)
		}
		return out
	case string:
		return maskSource(t)
	}
	return v
}
