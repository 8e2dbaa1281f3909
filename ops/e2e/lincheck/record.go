package lincheck

import (
	"encoding/json"
	"os"
	"slices"
	"sync"
	"time"
)

// Outcome is what a client knows about a request's effect.
type Outcome string

// The outcomes.
const (
	// Done: it got a response, which may be a rejection by the state (404).
	Done Outcome = "done"
	// Nothing: it was rejected, or never sent. It has no effect.
	Nothing Outcome = "nothing"
	// Unknown: it may have an effect, then or later.
	Unknown Outcome = "unknown"
)

// Object is the kind of object that a key names.
type Object string

// The objects.
const (
	Settings     Object = "settings"
	Conversation Object = "conversation"
	Sandbox      Object = "sandbox"
	Spec         Object = "spec"
)

// Op is one request about one object. The object's model defines In and Out.
type Op struct {
	Client int    `json:"client"`
	Object Object `json:"object"`
	Key    string `json:"key"`
	// Of names the group that the object is listed with and checked with: a user's
	// conversations, or specs that are applied together. "" is an object of its own.
	Of  string `json:"of,omitempty"`
	Do  string `json:"do"` // "read", or the write's name
	In  Value  `json:"in,omitzero"`
	Out Value  `json:"out,omitzero"`
	// Items are the items of a listing, or those that one request wrote together. Page is the
	// part of the listing.
	Items []Item `json:"items,omitempty"`
	Page  Page   `json:"page,omitzero"`
	// Call and Return are times since the recorder was made, on the monotonic clock.
	Call    time.Duration `json:"call"`
	Return  time.Duration `json:"return"`
	Outcome Outcome       `json:"outcome"`
	// Node is the responding node, Life its process, Index the response's X-Bivouac-Index.
	Node  string `json:"node"`
	Life  uint64 `json:"life"`
	Index uint64 `json:"index"`
	// Stale marks a read that accepts the node's own state.
	Stale bool `json:"stale,omitempty"`
	// Error is the text of a response that is not a success.
	Error string `json:"error,omitempty"`
}

// Item is one object of a group as a listing shows it.
type Item struct {
	ID    string `json:"id"`
	Value string `json:"value"`
	// Born orders a listing, newest first; zero if unknown.
	Born time.Time `json:"born,omitzero"`
}

// Page is a part of a listing: at most Limit items after the item After ("" for the beginning).
// More is whether the response says that others follow.
type Page struct {
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
	More  bool   `json:"more,omitempty"`
}

// whole reports whether a listing shows all items.
func (p Page) whole() bool { return p.After == "" && !p.More }

// reads reports whether the op changes nothing.
func (op Op) reads() bool { return op.Do == Read || op.Do == List }

// Value is the part of an object that the models know.
type Value struct {
	// There is false for an object that does not exist (any more).
	There bool `json:"there"`
	// A, B and C are the model's members. Keep marks the members that a write does not change.
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
	C    string `json:"c,omitempty"`
	Keep bool   `json:"keep,omitempty"`
}

// Recorder collects ops from concurrent clients.
type Recorder struct {
	begin time.Time
	mu    sync.Mutex
	ops   []Op
}

// NewRecorder makes an empty record.
func NewRecorder() *Recorder { return &Recorder{begin: time.Now()} }

// Now is the time since the record was made.
func (r *Recorder) Now() time.Duration { return time.Since(r.begin) }

// Add adds one op.
func (r *Recorder) Add(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, op)
}

// Ops returns all ops so far, sorted by their call.
func (r *Recorder) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	ops := slices.Clone(r.ops)
	slices.SortStableFunc(ops, func(a, b Op) int { return int(a.Call - b.Call) })
	return ops
}

// Save writes ops as JSON, one per line.
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
