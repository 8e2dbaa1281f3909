package native

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// TestWait_APlaceInTheGatewaysQueue is told to those who follow, and the wait outlasts the time-out
// of a silent server.
func TestWait_APlaceInTheGatewaysQueue(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(preset.HeaderPlace) == "" {
			t.Error("the request does not ask for its place")
		}
		tick := time.NewTicker(400 * time.Millisecond)
		defer tick.Stop()
		for place := 6; place > 0; place-- {
			w.Header().Set(preset.HeaderPlace, fmt.Sprint(place))
			w.WriteHeader(http.StatusProcessing)
			<-tick.C
		}
		fmt.Fprint(w, `{"choices":[{"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}]}`)
	}))
	defer s.Close()
	r := newRig(t, modeltest.Turns(modeltest.Text("x")), func(setup *engine.Setup) {
		none := 0
		setup.Agent.LLM.BaseURL, setup.Agent.LLM.Timeout, setup.Agent.LLM.NumRetries = s.URL+"/v1", 1, &none
		setup.Agent.LLM.MaxInputTokens = 1000
	})
	r.say("go")
	r.ends(engine.Finished)
	var places []int
	for _, e := range r.memory.sent {
		if u, is := e.(*event.StateUpdate); is && u.Key == event.KeyModelQueue {
			var n int
			if err := json.Unmarshal(u.Value, &n); err != nil {
				t.Fatal(err)
			}
			places = append(places, n)
		}
	}
	if fmt.Sprint(places) != "[6 5 4 3 2 1]" {
		t.Errorf("the places were %v", places)
	}
}
