package native

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
	"bivouac.dev/bivouac/scheduler/agent/preset"
)

// Each fault of a model's server ends the run with the code of the contract, streamed or not, and
// nothing of a broken answer is stored.
func TestFaults_EndWithTheirCode(t *testing.T) {
	for _, c := range []struct {
		fault  string
		code   string
		calls  int // with three retries
		detail string
	}{
		{modeltest.Unauthorized, "LLMAuthenticationError", 1, "Set another one in the settings"},
		{modeltest.RateLimit, "LLMRateLimitError", 4, "Try again later"},
		{modeltest.NoQuota, "LLMBudgetError", 1, "used up"},
		{modeltest.ServerError, "LLMServiceUnavailableError", 4, "HTTP 500"},
		{modeltest.Unavailable, "LLMServiceUnavailableError", 4, "overloaded"},
		{modeltest.Hangup, "LLMServiceUnavailableError", 4, "can't be reached"},
		{modeltest.BadRequest, "LLMBadRequestError", 1, "Check the model"},
		{modeltest.Garbage, "LLMNoResponseError", 4, "not complete or not valid"},
		{modeltest.Truncated, "LLMNoResponseError", 4, "not complete or not valid"},
		{modeltest.Cut, "LLMNoResponseError", 4, "not complete or not valid"},
		{modeltest.StreamError, "LLMNoResponseError", 4, "engine died"},
		{modeltest.Empty, "LLMNoResponseError", 4, "no answer in it"},
	} {
		for _, streamed := range []bool{true, false} {
			name := c.fault
			if !streamed {
				name += ", whole"
			}
			t.Run(name, func(t *testing.T) {
				if c.fault == modeltest.StreamError && !streamed {
					t.Skip("a whole answer has no middle")
				}
				a := modeltest.Answer{Text: "An answer that is never complete.", Fault: &modeltest.Fault{Kind: c.fault}}
				retries := 3
				r := newRig(t, modeltest.Turns(a), func(s *engine.Setup) {
					s.Agent.LLM.NumRetries, s.Agent.LLM.Stream = &retries, &streamed
				})
				r.say("go")
				f := r.fails(c.code)
				if !strings.Contains(f.Detail, c.detail) || strings.Contains(f.Detail, "sk-scripted") {
					t.Errorf("detail: %s", f.Detail)
				}
				if n := len(r.server.Requests()); n != c.calls {
					t.Errorf("%d calls, want %d", n, c.calls)
				}
				r.tells("user: go", "system")
				// The fault is over: the next run answers.
				r.server.SetScript(modeltest.Turns(modeltest.Text("Here.")))
				r.ends(engine.Finished)
			})
		}
	}
}

func TestFaults_AServerThatIsDown(t *testing.T) {
	r := newRig(t, modeltest.Turns(modeltest.Text("Here.")))
	r.server.Down()
	r.say("go")
	f := r.fails("LLMServiceUnavailableError")
	if c := event.Classify(f.Code); !c.Retryable || c.UserAction != "retry" {
		t.Errorf("classified as %+v", c)
	}
	if err := r.server.Up(); err != nil {
		t.Fatal(err)
	}
	r.ends(engine.Finished)
}

// What passes is retried within the step; Retry-After is obeyed, and one that is too long is not
// waited for.
func TestFaults_ThatPass(t *testing.T) {
	for _, kind := range []string{
		modeltest.RateLimit, modeltest.ServerError, modeltest.Unavailable, modeltest.Hangup,
		modeltest.Truncated, modeltest.Cut, modeltest.StreamError, modeltest.Garbage, modeltest.Empty,
	} {
		r := newRig(t, modeltest.Turns(modeltest.Answer{Text: "Here.", Fault: &modeltest.Fault{Kind: kind, Times: 2}}))
		r.say("go")
		r.ends(engine.Finished)
		if n := len(r.server.Requests()); n != 3 {
			t.Errorf("%s: %d calls", kind, n)
		}
	}
	r := newRig(t,
		modeltest.Turns(modeltest.Answer{
			Text:  "Here.",
			Fault: &modeltest.Fault{Kind: modeltest.RateLimit, Times: 1, RetryAfterS: 1},
		}))
	r.say("go")
	began := time.Now()
	r.ends(engine.Finished)
	if took := time.Since(began); took < time.Second {
		t.Errorf("asked again after %s, before the server wanted it", took)
	}
	r = newRig(t,
		modeltest.Turns(modeltest.Answer{
			Text:  "Here.",
			Fault: &modeltest.Fault{Kind: modeltest.RateLimit, RetryAfterS: 3600},
		}))
	r.say("go")
	if f := r.fails("LLMRateLimitError"); !strings.Contains(f.Detail, "1h0m0s") || len(r.server.Requests()) != 1 {
		t.Errorf("%s, %d calls", f.Detail, len(r.server.Requests()))
	}
}

// The time-out is for each part: a slow stream is read to its end, a silent one is given up.
func TestFaults_Slow(t *testing.T) {
	second := func(s *engine.Setup) { s.Agent.LLM.Timeout = 1 }
	a := modeltest.Answer{
		Text:  strings.Repeat("long ", 60),
		Fault: &modeltest.Fault{Kind: modeltest.SlowChunks, DelayMS: 50},
	}
	r := newRig(t, modeltest.Turns(a), second) // 28 parts: more than a second
	r.say("go")
	r.ends(engine.Finished)

	a.Fault = &modeltest.Fault{Kind: modeltest.Slow, DelayMS: 60_000}
	none := 0
	r = newRig(t, modeltest.Turns(a), second, func(s *engine.Setup) { s.Agent.LLM.NumRetries = &none })
	r.say("go")
	if f := r.fails("LLMTimeoutError"); !strings.Contains(f.Detail, "within 1s") {
		t.Error(f.Detail)
	}
}

// A model that is not set up is a failure that names the setting.
func TestFaults_NotConfigured(t *testing.T) {
	for model, want := range map[string]string{"": "No model is set", "litellm_proxy/x": "needs a base URL"} {
		r := newRig(t, modeltest.Turns(modeltest.Text("x")),
			func(s *engine.Setup) { s.Agent.LLM.Model, s.Agent.LLM.BaseURL = model, "" })
		r.say("go")
		if f := r.fails("LLMNotConfigured"); !strings.Contains(f.Detail, want) {
			t.Errorf("%q: %s", model, f.Detail)
		}
	}
}

// A content filter is asked to let another wording pass, three times.
func TestFaults_ContentFilter(t *testing.T) {
	for name, a := range map[string]modeltest.Answer{
		"an error": {
			Fault: &modeltest.Fault{Kind: modeltest.ContentFilter},
		}, "a reason to finish": {Finish: "content_filter"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, modeltest.InOrder(a, modeltest.Text("Here.")))
			r.say("go")
			r.ends(engine.Finished)
			r.tells("user: go", "system", "user: "+filteredText, "agent: Here.")
			r = newRig(t, modeltest.InOrder(a))
			r.say("go")
			_ = r.fails("UsagePolicyRefusal")
			if n := len(r.server.Requests()); n != mostFiltered+1 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// A model that never stops repeats itself, and is stuck. One that varies goes on: the server's
// limits end it.
func TestFaults_NeverStops(t *testing.T) {
	r := newRig(t, modeltest.Turns(modeltest.Calls(echo("again"))))
	r.add(newProbe("echo"))
	r.say("go")
	r.ends(engine.Stuck)
	if n := len(all[*event.Action](r)); n != stuckSame {
		t.Errorf("%d actions", n)
	}
}

// An interrupt ends the call of the model at once, and a tool; nothing is stored of them.
func TestStep_Interrupt(t *testing.T) {
	hold := make(chan struct{})
	r := newRig(t, modeltest.InOrder(
		modeltest.Answer{Text: "late", Hold: hold}, modeltest.Calls(echo("one"), echo("two")), modeltest.Text("Done.")))
	p := newProbe("echo")
	p.gate = make(chan struct{})
	r.add(p)
	r.say("go")
	interrupted := func(ready func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := r.run(ctx)
			done <- err
		}()
		within, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		if err := ready(within); err != nil {
			t.Fatal(err)
		}
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("the step ends with %v", err)
			}
		case <-within.Done():
			t.Fatal("the step does not end")
		}
	}
	interrupted(func(ctx context.Context) error { return r.server.Wait(ctx, 1) })
	r.tells("user: go", "system")

	interrupted(func(ctx context.Context) error {
		for ctx.Err() == nil {
			p.mu.Lock()
			n := len(*p.runs)
			p.mu.Unlock()
			if n == 1 {
				return nil
			}
		}
		return ctx.Err()
	})
	r.tells("user: go", "system", "call echo", "call echo")

	// The server writes the errors of open actions. Without them the next step executes the actions.
	close(p.gate)
	r.ends(engine.Finished)
	r.tells("user: go", "system", "call echo", "call echo", "result echo: echo one", "result echo: echo two",
		"agent: Done.")
}

// A redirect is not followed: neither the key nor the prompt goes to another server.
func TestTry_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		t.Errorf("%s %s with the keys %q and %q", r.Method, r.URL, r.Header["X-Api-Key"], r.Header["Api-Key"])
	}))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		c := answering(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/v1/messages?key=k", status)
		})
		c.llm.APIKey, c.endpoint.Azure, c.dialects.now.api = "sk-1", true, preset.Messages
		_, err := c.ask(t.Context(), streamed())
		var failure *engine.Failure
		if !errors.As(err, &failure) || failure.Code != codeBadRequest ||
			!strings.Contains(failure.Detail, "redirects to "+elsewhere.URL+"/v1/messages, which is not followed") {
			t.Errorf("%d: %v", status, err)
		}
		c.discover(t.Context())
	}
	if n := reached.Load(); n > 0 {
		t.Errorf("%d requests came to another server", n)
	}
}
