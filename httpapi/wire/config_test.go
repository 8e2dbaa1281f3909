package wire

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// TestConfig_ComesBack: what ConfigOf writes as JSON is what Installation reads, and a client that
// leaves blocks out gets their defaults.
func TestConfig_ComesBack(t *testing.T) {
	t.Parallel()
	want := fsm.Installation{
		Policy:  fsm.Policy{IdleTimeout: 90 * time.Minute, MaxRunning: -1},
		PerUser: fsm.Limits{Running: 5, StateBytes: 9}, Overall: fsm.Limits{CPU: 7},
		OnLimit: fsm.OnLimitRefuse,
		Git:     fsm.Git{Unverified: true, AllowedHosts: []string{"git.example"}},
		LLM: fsm.LLM{
			Direct: true, Hosts: []string{"192.0.2.7"}, Models: []string{"m"},
			Prices:  []fsm.Price{{Model: "m", Input: 3, CachedInput: new(0.5)}},
			Budgets: fsm.Budgets{PerTask: 2},
		},
	}
	want.CORS.Origins = []string{"https://a.example"}
	text, err := json.Marshal(ConfigOf(want))
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Installation(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	c.Git, c.CORS, c.LLM = nil, nil, nil
	if got, err := c.Installation(); err != nil || got.Git.Unverified || got.LLM.Direct {
		t.Errorf("without blocks: %+v, %v", got, err)
	}
	c.Policy.MaxRunning = new("soon")
	if _, err := c.Installation(); err == nil {
		t.Error("soon is a time")
	}
}

// TestTime_IsReadAsItIsWritten: a client reads a time of the API and writes it as the API does.
func TestTime_IsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`"2026-01-02T15:04:05Z"`, `"2026-01-02T15:04:05.120000Z"`} {
		var at Time
		if err := json.Unmarshal([]byte(text), &at); err != nil {
			t.Fatal(err)
		}
		if again, err := json.Marshal(at); err != nil || string(again) != text {
			t.Errorf("%s becomes %s, %v", text, again, err)
		}
	}
}
