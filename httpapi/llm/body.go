package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// body is what the gateway reads of a request's body. An endpoint must read the same of it.
type body struct {
	model  string
	stream bool
	// models are OpenRouter's models to fall back to.
	models        []string
	streamOptions json.RawMessage
}

// readBody reads a request's body. Names are compared exactly, and none may come twice: endpoints
// differ in which one counts, and encoding/json takes "Model" for "model".
func readBody(text []byte) (b body, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return b, errors.New("it is no JSON object")
	}
	read := map[string]any{"model": &b.model, "stream": &b.stream, "models": &b.models, "stream_options": &b.streamOptions}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return b, errors.New("it is not valid JSON")
		}
		name, _ := t.(string)
		to, ours := read[name]
		if !ours {
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

// understand reads what the gateway needs of the body.
func (q *request) understand() error {
	in, err := readBody(q.body)
	if err != nil {
		return refuse(http.StatusBadRequest, reasonBody, "the request's body is no JSON object of this API: %v", err)
	}
	q.stream, q.others = in.stream, in.models
	if q.name == "" {
		q.name = in.model
	}
	if q.name == "" {
		return refuse(http.StatusBadRequest, reasonModel, "the request names no model")
	}
	if q.chat && q.stream {
		q.body, q.addedUsage = askUsage(q.body, in.streamOptions)
	}
	return nil
}
