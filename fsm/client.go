package fsm

import (
	"slices"
	"strings"
	"time"
)

// maxClients bounds the clients that operators have marked.
const maxClients = 1024

// The marks of a client.
const (
	// ClientDraining: what runs there is paused and its workspaces are moved to other clients.
	ClientDraining = "draining"
	// ClientLost: the machine and its disk are gone for good, by an operator's word. Nothing on it
	// runs, and its workspaces come back from their copies.
	ClientLost = "lost"
)

// How far a drain is. One that was begun below VersionRoom has no phase and takes everything at once.
const (
	// DrainFirst: one workspace is moved, and the others go on.
	DrainFirst = "first"
	// DrainAll: that one was moved, and all others follow.
	DrainAll = "all"
	// DrainStopped: it can't be done. What is still on the client is resumed there.
	DrainStopped = "stopped"
)

// maxStays bounds the sandboxes that a drain leaves where they are. With one more it stops.
const maxStays = 8

// ClientMark is what an operator said of a client that runs sandboxes, one of Nomad's.
type ClientMark struct {
	ID string `json:"id"`
	// Mark is ClientDraining or ClientLost.
	Mark string `json:"mark"`
	// Since is when it was marked.
	Since time.Time `json:"since"`
	// Drain is how far a drain is.
	Drain string `json:"drain,omitempty"`
	// First is the sandbox that is moved before the others, "" until the leader has chosen it.
	First string `json:"first,omitempty"`
	// Stays are the sandboxes that could not be moved, and Failure why the last of them was not.
	Stays   []string `json:"stays,omitempty"`
	Failure string   `json:"failure,omitempty"`
}

// Equal reports whether two marks say the same.
func (m ClientMark) Equal(o ClientMark) bool {
	return m.ID == o.ID && m.Mark == o.Mark && m.Since.Equal(o.Since) && m.Drain == o.Drain && m.First == o.First &&
		slices.Equal(m.Stays, o.Stays) && m.Failure == o.Failure
}

// Drains reports whether the drain of a client takes the sandbox off it now.
func (m ClientMark) Drains(sandbox string) bool {
	switch {
	case m.Mark != ClientDraining || m.Drain == DrainStopped || slices.Contains(m.Stays, sandbox):
		return false
	case m.Drain == DrainFirst:
		return m.First == sandbox
	}
	return true
}

// ClientMarks lists the marked clients by id. Callers must not change it.
func (v *View) ClientMarks() []ClientMark { return v.meta.Clients }

// ClientMark returns the mark of a client, "" for none.
func (v *View) ClientMark(id string) string { return v.meta.clientMark(id) }

// MarkOf returns all that is known of a client's mark; the zero value is none.
func (v *View) MarkOf(id string) ClientMark { return v.meta.markOf(id) }

func (m *meta) clientMark(id string) string { return m.markOf(id).Mark }

func (m *meta) markOf(id string) ClientMark {
	for _, c := range m.Clients {
		if c.ID == id && id != "" {
			return c
		}
	}
	return ClientMark{}
}

// setMark replaces the mark of a client; one without Mark ends it.
func (t *transaction) setMark(c ClientMark) {
	list := slices.DeleteFunc(slices.Clone(t.meta.Clients), func(o ClientMark) bool { return o.ID == c.ID })
	if c.Mark != "" {
		list = append(list, c)
		slices.SortFunc(list, func(a, b ClientMark) int { return strings.Compare(a.ID, b.ID) })
	}
	if t.meta.Clients = list; len(list) == 0 {
		t.meta.Clients = nil
	}
	t.changed()
}

// ClientMarkBody marks a client, or with "" ends its mark. Marking one as it is marked changes
// nothing, but a drain that left sandboxes there begins again. A lost client can't become a draining
// one. An operator proposes it.
type ClientMarkBody struct {
	ID   string `json:"id"`
	Mark string `json:"mark"`
}

// CommandType implements Body.
func (*ClientMarkBody) CommandType() CommandType { return ClientMarkSet }

// check implements Body.
func (b *ClientMarkBody) check(r *rules) {
	r.lookedUp("client id", b.ID)
	r.check(b.Mark == "" || b.Mark == ClientDraining || b.Mark == ClientLost, "unknown mark of a client %q", clip(b.Mark))
}

func (t *transaction) applyClientMark(b *ClientMarkBody) (Result, *Error) {
	was := t.meta.markOf(b.ID)
	switch {
	case was.Mark == b.Mark && len(was.Stays) == 0:
		return Result{}, nil
	case was.Mark == ClientLost && b.Mark == ClientDraining:
		return Result{}, Errorf(CodeConflict, "the client %s is marked as lost: what was on it comes back from copies", b.ID)
	case was.Mark == "" && len(t.meta.Clients) >= maxClients:
		return Result{}, Errorf(CodeConflict, "%d clients are marked already: end the marks of those that are gone",
			maxClients)
	}
	next := ClientMark{ID: b.ID, Mark: b.Mark, Since: t.now}
	if b.Mark == ClientDraining && t.meta.active(VersionRoom) {
		next.Drain = DrainFirst
	}
	t.setMark(next)
	return Result{}, nil
}

// ClientDrainBody says how far the drain of a client is. The leader proposes it: First is the sandbox
// that it moves before the others, or Sandbox one that it could not move, with the reason in Failure.
// That stops the drain if nothing was moved yet; later the sandbox stays, and the others go on. Since
// is the mark's: what an earlier drain came to is CodeConflict.
type ClientDrainBody struct {
	ID      string    `json:"id"`
	Since   time.Time `json:"since"`
	First   string    `json:"first,omitempty"`
	Sandbox string    `json:"sandbox,omitempty"`
	Failure string    `json:"failure,omitempty"`
}

// CommandType implements Body.
func (*ClientDrainBody) CommandType() CommandType { return ClientDrain }

// check implements Body.
func (b *ClientDrainBody) check(r *rules) {
	r.lookedUp("client id", b.ID)
	r.check((b.First == "") != (b.Sandbox == ""), "a drain has a first sandbox, or one that could not be moved")
	r.sandboxID("sandbox id", b.First+b.Sandbox)
	r.text("failure", b.Failure, MaxPath)
	r.check((b.Failure == "") == (b.Sandbox == ""), "a sandbox that could not be moved has a reason")
}

func (t *transaction) applyClientDrain(b *ClientDrainBody) (Result, *Error) {
	m := t.meta.markOf(b.ID)
	switch {
	case m.Drain == "" || m.Drain == DrainStopped || !m.Since.Equal(b.Since):
		return Result{}, Errorf(CodeConflict, "the client %s is not being drained since then", b.ID)
	case b.First != "" && m.Drain != DrainFirst:
		return Result{}, Errorf(CodeConflict, "the drain of the client %s has moved its first workspace", b.ID)
	case b.First != "":
		m.First = b.First
	case slices.Contains(m.Stays, b.Sandbox):
		return Result{}, nil
	default:
		if m.Drain == DrainFirst || len(m.Stays) >= maxStays {
			m.Drain = DrainStopped
		}
		m.Stays, m.Failure = append(slices.Clone(m.Stays), b.Sandbox), b.Failure
	}
	t.setMark(m)
	return Result{}, nil
}

// drainForget leaves a sandbox that is gone out of what drains could not move: it stands in the way of
// none. What made a drain stop is kept.
func (t *transaction) drainForget(sandbox string) {
	for _, m := range t.meta.Clients {
		i := slices.Index(m.Stays, sandbox)
		if i < 0 || m.Drain != DrainAll {
			continue
		}
		if m.Stays = slices.Delete(slices.Clone(m.Stays), i, i+1); len(m.Stays) == 0 {
			m.Stays, m.Failure = nil, ""
		}
		t.setMark(m)
	}
}

// drainMoved notes that a workspace has left a client that is drained: the others follow.
func (t *transaction) drainMoved(client string) {
	if m := t.meta.markOf(client); m.Drain == DrainFirst {
		m.Drain, m.First = DrainAll, ""
		t.setMark(m)
	}
}
