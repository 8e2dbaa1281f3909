package llm

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"bivouac.dev/bivouac/fsm"
)

// body is what the gateway reads of a request's body. An endpoint must read the same of it.
type body struct {
	model         string
	stream        bool
	streamOptions json.RawMessage
	// limits are the members that bound the answer: how many tokens, and how many answers.
	limits limits
	// elsewhere is a member that may lead to another model or endpoint, "" if there is none.
	elsewhere string
}

// limits are the bounds of an answer in the words of the APIs. What is no number is no bound.
type limits struct {
	tokens, completion, output, answers, gemini, gemini2 json.RawMessage
}

// members are the members of a body that the gateway reads.
func (b *body) members() map[string]any {
	return map[string]any{
		"model": &b.model, "stream": &b.stream, "stream_options": &b.streamOptions,
		"max_tokens": &b.limits.tokens, "max_completion_tokens": &b.limits.completion, "max_output_tokens": &b.limits.output,
		"n": &b.limits.answers, "generationConfig": &b.limits.gemini, "generation_config": &b.limits.gemini2,
	}
}

// leadsElsewhere reports whether routers (LiteLLM, OpenRouter) ask another model or endpoint because
// of a member.
func leadsElsewhere(name string) bool {
	return slices.ContainsFunc([]string{
		"models", "model_list", "model_group", "fallbacks", "context_window_fallbacks", "context_window_fallback_dict",
		"content_policy_fallbacks",
		"api_base", "base_url", "user_config", "custom_llm_provider", "deployment_id", "extra_body",
		"router_settings_override", "litellm_params", "preset", "route",
	}, func(n string) bool { return strings.EqualFold(n, name) })
}

// readBody reads a request's body. Names are compared exactly, none may come twice and none may
// differ from ours by case alone: endpoints differ in which one counts, and encoding/json takes
// "Model" for "model".
func readBody(text []byte) (b body, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return b, errors.New("it is no JSON object")
	}
	read := b.members()
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return b, errors.New("it is not valid JSON")
		}
		name, _ := t.(string)
		to, ours := read[name]
		if !ours {
			if like := likeOurs(read, name); like != "" {
				return b, fmt.Errorf("a member differs from %q by case alone", like)
			}
			if leadsElsewhere(name) {
				b.elsewhere = name
			}
			to = new(json.RawMessage)
		}
		err = d.Decode(to)
		switch {
		case ours && seen[name]:
			return b, fmt.Errorf("%q comes twice", name)
		case ours && err != nil:
			return b, fmt.Errorf("%q has no value of its type", name)
		case err != nil:
			return b, errors.New("it is not valid JSON")
		}
		seen[name] = true
	}
	if _, err := d.Token(); err != nil || len(bytes.TrimSpace(text[d.InputOffset():])) > 0 {
		return b, errors.New("it is not valid JSON")
	}
	return b, nil
}

// likeOurs returns the name that a name equals but for case, "" for none.
func likeOurs(read map[string]any, name string) string {
	for ours := range read {
		if strings.EqualFold(ours, name) {
			return ours
		}
	}
	return ""
}

// understand reads what the gateway needs of the body.
func (q *request) understand() error {
	in, err := readBody(q.body)
	if err != nil {
		return refuse(http.StatusBadRequest, reasonBody, "the request's body is no JSON object of this API: %v", err)
	}
	q.stream, q.output = in.stream, in.limits.most()
	q.name = cmp.Or(q.name, in.model)
	if q.name == "" {
		return refuse(http.StatusBadRequest, reasonModel, "the request names no model")
	}
	if q.bounded() {
		if in.elsewhere != "" {
			return refuse(http.StatusForbidden, reasonModel,
				"%q may lead to another model: send requests without it while the operator limits or prices models", in.elsewhere)
		}
		if strings.Contains(q.name, ",") {
			return refuse(http.StatusForbidden, reasonModel,
				"the model %q is a list: name one model while the operator limits or prices models", q.name)
		}
	}
	if q.chat && q.stream {
		q.body, q.addedUsage = askUsage(q.body, in.streamOptions)
	}
	return nil
}

// bounded reports whether it matters which model is asked: by the operator's lists, or by a budget,
// for which the vendors' list prices count.
func (q *request) bounded() bool {
	own := q.settings != nil && q.settings.Values.MaxBudgetPerTask != nil && *q.settings.Values.MaxBudgetPerTask > 0
	return len(q.policy.Models)+len(q.policy.Prices) > 0 || own || q.policy.Budgets != (fsm.Budgets{})
}

const (
	// assumedOutput is how many tokens an answer may have whose request does not say.
	assumedOutput = 4096
	// maxAnswers bounds how many answers one request is charged for.
	maxAnswers = 128
)

// most returns the most tokens that all answers to a request have.
func (l limits) most() int64 {
	var nested struct {
		Camel   count `json:"maxOutputTokens"`
		Snake   count `json:"max_output_tokens"`
		Answers count `json:"candidateCount"`
		Snakes  count `json:"candidate_count"`
	}
	for _, text := range []json.RawMessage{l.gemini, l.gemini2} {
		_ = json.Unmarshal(text, &nested) // what is no object bounds nothing
	}
	number := func(text json.RawMessage) (n count) {
		_ = n.UnmarshalJSON(text) // it has no error
		return n
	}
	tokens := max(number(l.tokens), number(l.completion), number(l.output), nested.Camel, nested.Snake)
	tokens = cmp.Or(tokens, assumedOutput)
	answers := max(1, number(l.answers), nested.Answers, nested.Snakes)
	return int64(min(tokens*min(answers, maxAnswers), maxCount))
}
