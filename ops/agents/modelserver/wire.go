package modelserver

import "slices"

// API is what a server speaks, by the name that the agent's settings have for it.
type API string

// The APIs. None is chat completions.
const (
	Completions API = "completions"
	Responses   API = "responses"
	Messages    API = "messages"
)

// path is the API's path below the base URL.
func (a API) path() string {
	if a == Completions {
		return "/chat/completions"
	}
	return "/" + string(a)
}

// Behaviours are written in chat completions. Those that every API has are shown in Messages and
// Responses, too: there Delta, End and Whole write what the API writes.

// stream writes an answer in another API than chat completions.
type stream interface {
	part(p part)
	end(finish string)
	whole(p part, finish string)
	// thinks writes a thought and what its maker knows it by.
	thinks(text, signature string)
}

// named writes an event with its kind, as those APIs have it.
func (a *Reply) named(kind string, members map[string]any) {
	members["type"] = kind
	a.Raw("event: " + kind + "\ndata: " + asJSON(members) + "\n\n")
}

// part is what a delta of chat completions says.
type part struct {
	text  string
	calls []Call
}

// partOf reads a delta or a message of chat completions.
func partOf(delta map[string]any) (p part) {
	p.text, _ = delta["content"].(string)
	list, _ := delta["tool_calls"].([]any)
	for _, one := range list {
		c, _ := one.(map[string]any)
		f, _ := c["function"].(map[string]any)
		var call Call
		call.ID, _ = c["id"].(string)
		call.Name, _ = f["name"].(string)
		call.Arguments, _ = f["arguments"].(string)
		p.calls = append(p.calls, call)
	}
	return p
}

// streamOf returns what writes an API's answers, nil for chat completions.
func (a *Reply) streamOf(api API) stream {
	switch api {
	case Messages:
		return &messagesStream{a: a}
	case Responses:
		return &responsesStream{a: a}
	case Completions:
	}
	return nil
}

// everywhere returns behaviours that are shown in every API.
func everywhere(list []Behaviour) []Behaviour {
	all := slices.Clone(list)
	for _, b := range list {
		if b.ChatOnly {
			continue
		}
		for _, api := range []API{Messages, Responses} {
			b.API = api
			all = append(all, b)
		}
	}
	return all
}
