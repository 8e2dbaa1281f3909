package config

import (
	"strings"
	"testing"
)

func TestConfig_FromEnv(t *testing.T) {
	cfg, err := FromEnv([]string{`OH_SESSION_API_KEYS=["a"]`, "OH_SESSION_API_KEYS_0=b", "OH_SESSION_API_KEYS_1=c",
		"SESSION_API_KEY=d",
		"OH_ALLOW_CORS_ORIGINS_0=https://x", "OH_SECRET_KEY=s"})
	if err != nil || strings.Join(cfg.Keys, "") != "abc" || cfg.CORSOrigins[0] != "https://x" || cfg.SecretKey != "s" ||
		cfg.BindHost() != "0.0.0.0" {
		t.Errorf("%+v, %v", cfg, err)
	}
	cfg, err = FromEnv([]string{"SESSION_API_KEY=d"})
	if err != nil || cfg.Keys[0] != "d" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if cfg, err = FromEnv(nil); err != nil || cfg.BindHost() != "127.0.0.1" {
		t.Errorf("%+v, %v", cfg, err)
	}
}
