package secrets

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"bivouac.dev/bivouac/deploy/local"
)

// A Vault that is sealed while the node asks it nothing shows in the metrics and in the log, and so
// does its end.
func TestMetrics_SealedVault_IsNoSession(t *testing.T) {
	t.Parallel()
	server := ownVault(t)
	cfg := config(t, server, local.AppRoleOptions{})
	registry, log := prometheus.NewRegistry(), &logBuffer{}
	cfg.Registerer, cfg.Logger = registry, log.logger()
	run(t, cfg)
	// shows waits until the gauges are value, and an error of the kind was counted.
	shows := func(what string, value float64, kind string) {
		t.Helper()
		eventually(t, what, func() error {
			families, err := registry.Gather()
			if err != nil {
				return err
			}
			found := map[string]float64{}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					switch {
					case m.GetGauge() != nil:
						found[f.GetName()] = m.GetGauge().GetValue()
					case f.GetName() == "bivouac_secret_store_errors_total":
						found[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
			if found["bivouac_secret_store_session"] != value || found["bivouac_secret_store_reachable"] != value {
				return fmt.Errorf("session %v, reachable %v, want %v", found["bivouac_secret_store_session"],
					found["bivouac_secret_store_reachable"], value)
			}
			if n, known := found[kind]; kind != "" && (!known || n == 0) {
				return fmt.Errorf("no error %s was counted: %v", kind, found)
			}
			return nil
		})
	}
	shows("at first", 1, "")
	if err := server.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	shows("sealed", 0, "sealed")
	if err := server.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	shows("unsealed", 1, "")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	shows("killed", 0, "unreachable")
	for _, line := range []string{"level=WARN msg=\"vault is sealed", "level=INFO msg=\"vault is unsealed"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("%d lines %q in\n%s", n, line, log.String())
		}
	}
}
