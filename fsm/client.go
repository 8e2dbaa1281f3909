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

// ClientMark is what an operator said of a client that runs sandboxes, one of Nomad's.
type ClientMark struct {
	ID string `json:"id"`
	// Mark is ClientDraining or ClientLost.
	Mark string `json:"mark"`
	// Since is when it was marked.
	Since time.Time `json:"since"`
}

// ClientMarks lists the marked clients by id. Callers must not change it.
func (v *View) ClientMarks() []ClientMark { return v.meta.Clients }

// ClientMark returns the mark of a client, "" for none.
func (v *View) ClientMark(id string) string { return v.meta.clientMark(id) }

func (m *meta) clientMark(id string) string {
	for _, c := range m.Clients {
		if c.ID == id && id != "" {
			return c.Mark
		}
	}
	return ""
}

// ClientMarkBody marks a client, or with "" ends its mark. Marking one as it is marked changes
// nothing. A lost client can't become a draining one. An operator proposes it.
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
	was := t.meta.clientMark(b.ID)
	switch {
	case was == b.Mark:
		return Result{}, nil
	case was == ClientLost && b.Mark == ClientDraining:
		return Result{}, Errorf(CodeConflict, "the client %s is marked as lost: what was on it comes back from copies", b.ID)
	case was == "" && len(t.meta.Clients) >= maxClients:
		return Result{}, Errorf(CodeConflict, "%d clients are marked already: end the marks of those that are gone", maxClients)
	}
	list := slices.DeleteFunc(slices.Clone(t.meta.Clients), func(c ClientMark) bool { return c.ID == b.ID })
	if b.Mark != "" {
		list = append(list, ClientMark{b.ID, b.Mark, t.now})
		slices.SortFunc(list, func(a, b ClientMark) int { return strings.Compare(a.ID, b.ID) })
	}
	if t.meta.Clients = list; len(list) == 0 {
		t.meta.Clients = nil
	}
	t.changed = true
	return Result{}, nil
}
