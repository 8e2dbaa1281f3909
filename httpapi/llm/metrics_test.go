package llm

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// An endpoint of a user's own answers to any name: the names of one user leave room for others'.
func TestMetrics_InventedModelsLeaveRoom(t *testing.T) {
	t.Parallel()
	m := newMetrics(prometheus.NewRegistry())
	label := func(user, model string) string {
		return m.answered(user, model, http.StatusOK, tokens{}, 0, time.Second, time.Second)
	}
	for n := range 2 * maxModels {
		label("mallory", fmt.Sprint("invented-", n))
	}
	if got := label("ada", "gpt-5"); got != "gpt-5" {
		t.Errorf("another user's model is counted as %q", got)
	}
	if got := label("mallory", "gpt-5"); got != "gpt-5" {
		t.Errorf("a known model is counted as %q", got)
	}
	for user := range 2 * maxModels {
		for n := range maxUserModels {
			label(fmt.Sprint("u", user), fmt.Sprint("invented-", user, "-", n))
		}
	}
	if len(m.models) != maxModels || len(m.added) > maxModels {
		t.Errorf("%d models have a label, of %d users", len(m.models), len(m.added))
	}
}
