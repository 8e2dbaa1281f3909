package history

import (
	"encoding/json"
	"os"
	"slices"
	"sync"
	"time"
)

// Outcome is what a client knows of a request it made.
type Outcome string

// The outcomes.
const (
	// Done: it was answered, a refusal by the state (404) included.
	Done Outcome = "done"
	// Nothing: it was refused, or never sent; it had no effect.
	Nothing Outcome = "nothing"
	// Unknown: it may have an effect, then or later.
	Unknown Outcome = "unknown"
)

// Object is what kind of thing a key names.
type Object string

// The objects.
const (
	Settings     Object = "settings"
	Conversation Object = "conversation"
	Sandbox      Object = "sandbox"
	Spec         Object = "spec"
)

// Op is one request about one object. In and Out mean what the object's model
// says.
type Op struct {
	Client int    `json:"client"`
	Object Object `json:"object"`
	Key    string `json:"key"`
	// Of names the group that the object is listed in, and that is judged as a
	// whole: a user's conversations, or specs that are applied together. "" for
	// an object that stands alone.
	Of  string `json:"of,omitempty"`
	Do  string `json:"do"` // "read", or the write's name
	In  Value  `json:"in,omitzero"`
	Out Value  `json:"out,omitzero"`
	// Items is what a listing showed, or what one request wrote together; Page is
	// which part of a listing it is.
	Items []Item `json:"items,omitempty"`
	Page  Page   `json:"page,omitzero"`
	// Call and Return are since the recorder began, on the monotonic clock.
	Call    time.Duration `json:"call"`
	Return  time.Duration `json:"return"`
	Outcome Outcome       `json:"outcome"`
	// Node answered, as the process Life; Index is the answer's X-Bivouac-Index.
	Node  string `json:"node"`
	Life  uint64 `json:"life"`
	Index uint64 `json:"index"`
	// Stale marks a read that asked for no more than the node's own state.
	Stale bool `json:"stale,omitempty"`
	// Error is the answer's words when it was not a success.
	Error string `json:"error,omitempty"`
}

// Item is one object of a group as a listing shows it.
type Item struct {
	ID    string `json:"id"`
	Value string `json:"value"`
	// Born orders a listing, newest first; zero where nothing is said of it.
	Born time.Time `json:"born,omitzero"`
}

// Page is a part of a listing: at most Limit items behind the item After ("" for
// the beginning). More is whether the answer says that others follow.
type Page struct {
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
	More  bool   `json:"more,omitempty"`
}

// whole reports whether a listing showed all there is.
func (p Page) whole() bool { return p.After == "" && !p.More }

// reads reports whether the op changes nothing.
func (op Op) reads() bool { return op.Do == Read || op.Do == List }

// Value is the part of an object that the models know.
type Value struct {
	// There is false for an object that is not (any more).
	There bool `json:"there"`
	// A, B and C are members: which, the model says. Keep marks the members that
	// a write leaves alone.
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
	C    string `json:"c,omitempty"`
	Keep bool   `json:"keep,omitempty"`
}

// Recorder gathers ops from any number of clients.
type Recorder struct {
	begin time.Time
	mu    sync.Mutex
	ops   []Op
}

// NewRecorder begins a record.
func NewRecorder() *Recorder { return &Recorder{begin: time.Now()} }

// Now is the record's clock.
func (r *Recorder) Now() time.Duration { return time.Since(r.begin) }

// Add adds one op.
func (r *Recorder) Add(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
}

// Ops gives all ops so far, by the time they were called.
func (r *Recorder) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	ops := slices.Clone(r.ops)
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.Call - b.Call) })
	return ops
}

// Save writes ops as JSON, one on a line.
func Save(path string, ops []Op) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	e := json.NewEncoder(f)
	for _, op := range ops {
		if err := e.Encode(op); err != nil {
			return err
		}
	}
	return f.Close()
}
