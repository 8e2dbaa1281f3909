package decode

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://u:p@h/r.git":                         "https://****@h/r.git",
		"https://tok@h/r?a=1&access_token=x&b":        "https://****@h/r?a=1&access_token=****&b",
		"git@github.com:o/r.git":                      "git@github.com:o/r.git",
		"https://h/r":                                 "https://h/r",
		"see https://a:b@h and ssh://c:d@i":           "see https://****@h and ssh://****@i",
		"https://u:p@ss@h/r":                          "https://****@h/r",
		"HTTP 401, Authorization: Bearer abcdef.123":  "HTTP 401, Authorization: Bearer ****",
		"Authorization: Basic dXNlcjpwYXNz, retry":    "Authorization: Basic ****, retry",
		`{"X-Session-API-Key": "abcdef", "a": 1}`:     `{"X-Session-API-Key": "****", "a": 1}`,
		"the bearer abcdefgh12 was refused":           "the bearer **** was refused",
		"Incorrect API key provided: sk-abcdefgh1234": "Incorrect API key provided: sk-****",
		"key bvk_7f3a_0123456789abcdef is unknown":    "key bvk_7f3a_**** is unknown",
		"hvs.CAESIJabcdefgh and ghp_0123456789ab":     "hvs.**** and ghp_****",
		"the bearer token has expired":                "the bearer token has expired",
		"desk-booking, risk-assessment and key-value": "desk-booking, risk-assessment and key-value",
		"img:v1@sha256:" + strings.Repeat("a", 64):    "img:v1@sha256:" + strings.Repeat("a", 64),
	} {
		if got := Redact(in); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
		if got := Redact(Redact(in)); got != want {
			t.Errorf("%s twice became %s, want %s", in, got, want)
		}
	}
}

func TestHasUserinfo(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		"https://u:p@h": true, "https://tok@h/x": true, "u:tok@github.com/o/r": true, "//u:p@h": true,
		"a https://u@h b": true,
		"https://h/a@b":   false, "git@github.com:o/r.git": false, "o/r": false, "feature/a@2:b": false, "": false,
		"reg:5000/img@sha256:" + strings.Repeat("a", 64): false, "img:v1@sha256:" + strings.Repeat("a", 64): false,
	} {
		if got := HasUserinfo(in); got != want {
			t.Errorf("HasUserinfo(%q) is %v", in, got)
		}
	}
}

// TestRedactAttr_EveryKindOfAttribute: a credential is in the message, a text, an error, a list, and
// a group of attributes.
func TestLogAttr_DurationsHaveAUnit(t *testing.T) {
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: LogAttr})).With("with", time.Second).Info("done",
		"duration", 12500*time.Microsecond, "any", any(time.Minute), "count", 3, "error",
		errors.New("at https://me:secret@host/"))
	for _, want := range []string{`"with":"1s"`, `"duration":"12.5ms"`, `"any":"1m0s"`, `"count":3`, `https://****@host`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
}

func TestRedactAttr_EveryKindOfAttribute(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	const url = "https://u:canary@h/r"
	for _, h := range []slog.Handler{
		slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: RedactAttr}),
		slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: RedactAttr}),
	} {
		slog.New(h).With("with", url).Info("cloning "+url, "text", url, "error", errors.New("can't reach "+url),
			"list", []string{url}, slog.Group("group", "a", url))
	}
	if n := strings.Count(out.String(), "https://****@h/r"); n != 12 || strings.Contains(out.String(), "canary") {
		t.Errorf("%d credentials are masked: %s", n, &out)
	}
}
