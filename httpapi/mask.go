package httpapi

import (
	"regexp"
	"strings"
)

// maskedPart replaces a credential inside a text.
const maskedPart = "****"

// Where a plugin's URL may hold credentials.
var (
	urlUserinfo = regexp.MustCompile(`://[^/?#\s]*@`)
	urlSecret   = regexp.MustCompile(`(?i)([?&;][^=&;#\s]*(?:token|key|secret|password|passwd|auth|credential|signature)[^=&;#\s]*=)[^&;#\s]*`)
)

// maskSource masks the credentials in a plugin's source.
func maskSource(s string) string {
	s = urlUserinfo.ReplaceAllString(s, "://"+maskedPart+"@")
	return urlSecret.ReplaceAllString(s, "${1}"+maskedPart)
}

// looksSecret reports whether a member's name suggests a secret value.
func looksSecret(name string) bool {
	name = strings.ToLower(name)
	for _, part := range []string{"token", "key", "secret", "password", "passwd", "auth", "credential", "cookie", "header"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// maskMembers copies a JSON object. It masks the values of secret-looking members and the
// credentials in URLs.
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
