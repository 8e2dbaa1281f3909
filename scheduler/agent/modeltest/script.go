package modeltest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Script says what the server answers. Its JSON form is what ops/agents/scriptedmodel reads.
type Script struct {
	// Key is the key that every request must bear. Empty accepts all.
	Key string `json:"key,omitempty"`
	// Models are the models that exist; the first one is named in answers to requests that name
	// none. Empty accepts all.
	Models []string `json:"models,omitempty"`
	// Window is the context that the list of models names, as vLLM's does; 0 is none.
	Window int `json:"window,omitempty"`
	// Stories are tried in order: the first that fits a request answers it.
	Stories []*Story `json:"stories,omitempty"`
	// Func, if set, is asked before the stories. False leaves the request to them.
	Func func(Request) (Answer, bool) `json:"-"`
}

// Story is a list of answers for the requests that fit When. Answer n is given to a request with
// n assistant messages after the last user message, so that a story goes on after a restart of
// either side. The last answer is repeated.
type Story struct {
	When    When     `json:"when,omitzero"`
	Answers []Answer `json:"answers"`
	// InOrder counts the story's requests instead: each gets the next answer.
	InOrder bool `json:"in_order,omitempty"`

	asked int
	shown map[int]int // by answer: how often its fault was shown
}

// When is what a request must have; empty members fit all. The texts are regular expressions, and
// their named groups are put into the answer wherever it says ${name}.
type When struct {
	User   string `json:"user,omitempty"`   // in the last user message
	System string `json:"system,omitempty"` // in the system or developer messages
	Any    string `json:"any,omitempty"`    // in any message
	Model  string `json:"model,omitempty"`  // in the model's name
	Tool   string `json:"tool,omitempty"`   // a tool of exactly this name is offered; "-": none is
}

// Answer is one answer of the model.
type Answer struct {
	Text      string `json:"text,omitempty"`
	Reasoning string `json:"reasoning,omitempty"`
	Calls     []Call `json:"calls,omitempty"`
	// Finish is the reason to finish, in OpenAI's words. Empty is "tool_calls" with calls, else
	// "stop".
	Finish string `json:"finish,omitempty"`
	// Usage is the tokens that are reported. Nil reports a count of the bytes divided by 4.
	Usage *Usage `json:"usage,omitempty"`
	// Fault is shown instead of the answer, or while it is given.
	Fault *Fault `json:"fault,omitempty"`
	// Hold, if not nil, delays the answer until it is closed or the client is gone.
	Hold <-chan struct{} `json:"-"`
}

// Call is one tool call of an answer.
type Call struct {
	// ID is the call's id. Empty makes one of the request's number.
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Raw, if set, is sent in the place of the arguments, JSON or not.
	Raw string `json:"raw,omitempty"`
}

// ArgumentsText is the arguments as a protocol sends them: one line of JSON.
func (c Call) ArgumentsText() string {
	if c.Raw != "" {
		return c.Raw
	}
	if len(c.Arguments) == 0 {
		return "{}"
	}
	var line bytes.Buffer
	if json.Compact(&line, c.Arguments) != nil {
		return string(c.Arguments)
	}
	return line.String()
}

// Usage counts tokens. Prompt includes Cached and CacheWrite, Completion includes Reasoning.
type Usage struct {
	Prompt     int `json:"prompt"`
	Completion int `json:"completion"`
	Cached     int `json:"cached,omitempty"`
	CacheWrite int `json:"cache_write,omitempty"`
	Reasoning  int `json:"reasoning,omitempty"`
}

// Text is an answer of text only.
func Text(text string) Answer { return Answer{Text: text} }

// Calls is an answer of tool calls.
func Calls(calls ...Call) Answer { return Answer{Calls: calls} }

// Tool is a call with arguments that are marshaled. It panics where they can't be.
func Tool(name string, arguments any) Call {
	raw, err := json.Marshal(arguments)
	if err != nil {
		panic(fmt.Sprintf("modeltest: arguments of %s: %v", name, err))
	}
	return Call{Name: name, Arguments: raw}
}

// Turns is a script of one story: answers by the turn since the last user message.
func Turns(answers ...Answer) *Script {
	return &Script{Stories: []*Story{{Answers: answers}}}
}

// InOrder is a script of one story: each request gets the next answer.
func InOrder(answers ...Answer) *Script {
	return &Script{Stories: []*Story{{Answers: answers, InOrder: true}}}
}

// ParseScript reads a script from JSON. Unknown members are an error.
func ParseScript(raw []byte) (*Script, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var s Script
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("the script is not valid: %w", err)
	}
	return &s, s.check()
}

func (s *Script) check() error {
	for i, story := range s.Stories {
		if len(story.Answers) == 0 {
			return fmt.Errorf("story %d has no answers", i+1)
		}
		for _, pattern := range []string{story.When.User, story.When.System, story.When.Any, story.When.Model} {
			if _, err := regexp.Compile(pattern); err != nil {
				return fmt.Errorf("story %d: %w", i+1, err)
			}
		}
		for _, a := range story.Answers {
			if err := a.Fault.check(); err != nil {
				return fmt.Errorf("story %d: %w", i+1, err)
			}
		}
	}
	return nil
}

// answer chooses the answer to a request. The caller holds the server's lock.
func (s *Script) answer(r Request) (Answer, bool) {
	if s.Func != nil {
		if a, ok := s.Func(r); ok {
			return a, true
		}
	}
	for _, story := range s.Stories {
		if groups, ok := story.When.fits(r); ok {
			return story.next(r).expand(groups), true
		}
	}
	return Answer{}, false
}

func (st *Story) next(r Request) Answer {
	n := r.Turn()
	if st.InOrder {
		n = st.asked
	}
	n = min(n, len(st.Answers)-1)
	a := st.Answers[n]
	if st.shown == nil {
		st.shown = map[int]int{}
	}
	if f := a.Fault; f != nil && f.Times > 0 {
		if st.shown[n] >= f.Times {
			a.Fault = nil
		}
		st.shown[n]++
	}
	if a.Fault == nil || a.Fault.Times == 0 {
		st.asked++
	}
	return a
}

// fits reports whether a request has all that is asked, and returns the named groups.
func (w When) fits(r Request) (map[string]string, bool) {
	if w.Tool == "-" && len(r.Tools) > 0 || w.Tool != "" && w.Tool != "-" && !slices.Contains(r.Tools, w.Tool) {
		return nil, false
	}
	groups := map[string]string{}
	for _, p := range []struct{ pattern, text string }{
		{w.User, r.LastUser()}, {w.System, r.text("system", "developer")}, {w.Any, r.text()}, {w.Model, r.Model},
	} {
		if p.pattern == "" {
			continue
		}
		re := regexp.MustCompile(p.pattern)
		m := re.FindStringSubmatch(p.text)
		if m == nil {
			return nil, false
		}
		for i, name := range re.SubexpNames() {
			if name != "" {
				groups[name] = m[i]
			}
		}
	}
	return groups, true
}

// expand puts the groups in the place of ${name}. Arguments get them as JSON text.
func (a Answer) expand(groups map[string]string) Answer {
	if len(groups) == 0 {
		return a
	}
	var plain, quoted []string
	for name, value := range groups {
		inJSON, _ := json.Marshal(value) // text always marshals
		plain = append(plain, "${"+name+"}", value)
		quoted = append(quoted, "${"+name+"}", strings.Trim(string(inJSON), `"`))
	}
	text, arguments := strings.NewReplacer(plain...), strings.NewReplacer(quoted...)
	a.Text, a.Reasoning = text.Replace(a.Text), text.Replace(a.Reasoning)
	a.Calls = slices.Clone(a.Calls)
	for i, c := range a.Calls {
		a.Calls[i].Arguments = json.RawMessage(arguments.Replace(string(c.Arguments)))
		a.Calls[i].Raw = arguments.Replace(c.Raw)
	}
	return a
}
