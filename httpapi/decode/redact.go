package decode

import (
	"log/slog"
	"regexp"
	"slices"
	"strings"
)

// redactedPart replaces a credential inside a text.
const redactedPart = "****"

// Where a text may hold a credential. Each pattern keeps its first group.
var (
	urlUserinfo = regexp.MustCompile(`(://)[^/?#\s]*@`)
	urlSecret   = regexp.MustCompile(`(?i)([?&;][^=&;` +
		`#\s]*(?:token|key|secret|password|passwd|auth|credential|signature)[^=&;#\s]*=)[^&;#\s]*`)
	authHeader = regexp.MustCompile(
		`(?i)((?:authorization|api-key|private-token)["']?\s*[:=]\s*["']?(?:(?:basic|bearer|token|digest)\s+)?)[^\s"',;]+`,
	)
	bearerToken = regexp.MustCompile(`(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}`)
	// tokenForms has the prefixes that issuers give their tokens: ours, GitHub's, GitLab's, Slack's,
	// Vault's, and those of model providers. Redact looks for begin first: the expression is slow, and
	// most texts hold no token.
	tokenForms = []struct{ begin, then string }{ //nolint:gochecknoglobals // read-only
		{"bvk_", `[0-9A-Za-z]+_`}, {"gh", `[oprsu]_`}, {"github_pat_", ""}, {"glpat-", ""}, {"xox", `[abprs]-`},
		{"hv", `[sb]\.`}, {"sk-", ""},
	}
	knownToken = tokenExpression() //nolint:gochecknoglobals // read-only
	// imageDigest is what stands behind the @ of an image's name.
	imageDigest = regexp.MustCompile(`^[a-z0-9+._-]+:[0-9a-fA-F]{32,}`)
)

// Redact masks the credentials in a text: the user information and secret parameters of URLs,
// authorization headers, bearer tokens, and tokens with a known prefix. Every text that is stored or
// logged and holds another program's words goes through it.
func Redact(s string) string {
	const shortest = 8
	if len(s) < shortest {
		return s
	}
	if strings.Contains(s, "@") {
		s = urlUserinfo.ReplaceAllString(s, "${1}"+redactedPart+"@")
	}
	if strings.Contains(s, "=") {
		s = urlSecret.ReplaceAllString(s, "${1}"+redactedPart)
	}
	if strings.ContainsAny(s, " :=") {
		s = authHeader.ReplaceAllString(s, "${1}"+redactedPart)
		s = bearerToken.ReplaceAllString(s, "${1}"+redactedPart)
	}
	for _, form := range tokenForms {
		if strings.Contains(s, form.begin) {
			return knownToken.ReplaceAllString(s, "${1}"+redactedPart)
		}
	}
	return s
}

func tokenExpression() *regexp.Regexp {
	var forms []string
	for _, form := range tokenForms {
		forms = append(forms, regexp.QuoteMeta(form.begin)+form.then)
	}
	return regexp.MustCompile(`(\b(?:` + strings.Join(forms, "|") + `))[0-9A-Za-z_-]{8,}`)
}

// LogAttr prepares one attribute of a log line: a duration becomes a text with its unit, in JSON too,
// and credentials are masked. It is a slog.HandlerOptions.ReplaceAttr.
func LogAttr(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
		return a
	}
	return RedactAttr(groups, a)
}

// RedactAttr redacts one attribute of a log line. It is a slog.HandlerOptions.ReplaceAttr.
func RedactAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(Redact(a.Value.String()))
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error:
			a.Value = slog.StringValue(Redact(v.Error()))
		case []string:
			v = slices.Clone(v)
			for i := range v {
				v[i] = Redact(v[i])
			}
			a.Value = slog.AnyValue(v)
		}
	}
	return a
}

// HasUserinfo reports whether a text is or holds a URL with user information, also one without a
// scheme (user:password@host).
func HasUserinfo(s string) bool {
	if !strings.Contains(s, "@") { // the expression is slow, and most texts have no @
		return false
	}
	if urlUserinfo.MatchString(s) {
		return true
	}
	authority, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(s), "//"), "/")
	user, host, found := strings.Cut(authority, "@")
	return found && strings.Contains(user, ":") && !imageDigest.MatchString(host)
}

// userinfoRule is the problem of a URL with user information.
const userinfoRule = "a URL must not hold user information: store the credential as a secret"

// Address reads a string of at most limit characters that may be a URL. One with user information
// is refused, and not echoed.
func (o Object) Address(name string, limit int) *string {
	if s, ok := o.Value(name).(string); ok && HasUserinfo(s) {
		o.Masked().Rule(name, userinfoRule)
		return nil
	}
	return o.Text(name, limit)
}

// Repository reads a repository's address of at most limit characters: a path, with or without its
// host, or a URL. What may hold a credential is refused and not echoed: user information, a login
// before the host (TOKEN@host/owner/name), and the query of a URL.
func (o Object) Repository(name string, limit int) *string {
	s, ok := o.Value(name).(string)
	first, _, _ := strings.Cut(strings.TrimSpace(s), "/")
	login, _, hasLogin := strings.Cut(first, "@")
	switch {
	case !ok:
	case HasUserinfo(s), hasLogin && login != "git":
		o.Masked().Rule(name, userinfoRule)
		return nil
	case strings.Contains(s, "://") && strings.ContainsAny(s, "?#"), urlSecret.MatchString(s):
		o.Masked().Rule(name, "a repository's URL has no query: store a credential as a secret")
		return nil
	}
	return o.Text(name, limit)
}

// MustRepository reads a required repository's address.
func (o Object) MustRepository(name string, limit int) string {
	if !o.Require(name) || !o.NotNull(name, KindString) {
		return ""
	}
	return OrZero(o.Repository(name, limit))
}

// Endpoint reads the URL of a service, of at most limit characters. User information and parameters
// other than api-version, which may hold a key, are refused and not echoed.
func (o Object) Endpoint(name string, limit int) *string {
	s, _ := o.Value(name).(string)
	_, query, _ := strings.Cut(s, "?")
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return strings.ContainsRune("&;#", r) }) {
		if parameter, _, _ := strings.Cut(pair, "="); !strings.EqualFold(parameter, "api-version") {
			o.Masked().Rule(name, "a URL must have no parameter but api-version: store a key as a secret")
			return nil
		}
	}
	return o.Address(name, limit)
}

// secretFlag is the name of an option or variable whose value is a credential.
var secretFlag = regexp.MustCompile(`(?i)^-{0,2}[a-z0-9_.-]*(?:token|key|secret|password|passwd|credential)$`)

// HoldsCredential reports whether a command line has a credential in it: a token with a known prefix,
// or a value for an option or variable that is named as one. {{…}} is a placeholder, not a value.
func HoldsCredential(words []string) bool {
	for i, word := range words {
		if strings.Contains(word, "{{") {
			continue
		}
		name, value, assigned := strings.Cut(word, "=")
		if !assigned && strings.HasPrefix(word, "-") && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
			value = words[i+1]
		}
		named := secretFlag.MatchString(name) && value != "" && !strings.Contains(value, "{{")
		if named || Redact(word) != word {
			return true
		}
	}
	return false
}
