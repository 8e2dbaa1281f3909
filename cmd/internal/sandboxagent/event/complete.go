package event

import "encoding/json"

// Complete sets the lists that nobody has set: readers with closed models take no null for them.
func Complete(e Event) {
	switch e := e.(type) {
	case *SystemPrompt:
		filled(&e.Tools)
	case *Message:
		filled(&e.LLMMessage.Content)
		filled(&e.LLMMessage.ThinkingBlocks)
		filled(&e.ActivatedSkills)
		filled(&e.ExtendedContent)
	case *Action:
		filled(&e.Thought)
		filled(&e.ThinkingBlocks)
	case *Observation:
		filled(&e.ExtendedContent)
	case *Condensation:
		filled(&e.ForgottenEventIDs)
	}
}

// filled makes a nil list an empty one.
func filled[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}

// Whole returns a stored event with the members that are null, which older servers left out.
func Whole(raw []byte) []byte {
	e, err := Decode(raw)
	if err != nil {
		return raw
	}
	if u, is := e.(*StateUpdate); is && u.Key == "stats" {
		var s Stats
		if json.Unmarshal(u.Value, &s) == nil {
			u.Value, err = json.Marshal(s)
		}
	}
	Complete(e)
	b, wrong := json.Marshal(e)
	if err != nil || wrong != nil {
		return raw
	}
	return b
}
