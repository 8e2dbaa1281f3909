package fsm

import (
	"iter"
	"time"

	"github.com/hashicorp/go-memdb"
)

func conversationTable() *memdb.TableSchema {
	return newTable(tableConversations,
		newIndex(indexID, func(c *Conversation) []byte { return keyOf(c.UserID, c.ID) }),
		newIndex(indexCreated, func(c *Conversation) []byte { return newestKey(c.UserID, c.CreatedAt, c.ID) }),
		newIndex(indexV0, func(c *Conversation) []byte {
			if c.V0ID == "" {
				return nil
			}
			return keyOf(c.UserID, c.V0ID, c.ID)
		}),
		newIndex(indexParent, func(c *Conversation) []byte {
			if c.ParentID == nil {
				return nil
			}
			return append(appendTime(prefixOf(c.UserID, *c.ParentID), c.CreatedAt), c.ID...)
		}),
		newIndex(indexSandbox, func(c *Conversation) []byte { return keyOf(c.SandboxID, c.UserID, c.ID) }),
	)
}

// ConversationFilter narrows a listing. The zero value selects every conversation that is not a
// sub-conversation.
type ConversationFilter struct {
	// TitleContains ignores case; "" selects all.
	TitleContains string
	CreatedGTE    *time.Time
	CreatedLT     *time.Time
	UpdatedGTE    *time.Time
	UpdatedLT     *time.Time
	// SandboxID selects the conversations of one sandbox; "" selects all.
	SandboxID string
	// IncludeSub also selects conversations with a parent.
	IncludeSub bool
}

// takes reports whether the filter selects a conversation.
func (f *ConversationFilter) takes(c *Conversation) bool {
	switch {
	case !f.IncludeSub && c.ParentID != nil,
		f.SandboxID != "" && c.SandboxID != f.SandboxID,
		f.CreatedGTE != nil && c.CreatedAt.Before(*f.CreatedGTE),
		f.CreatedLT != nil && !c.CreatedAt.Before(*f.CreatedLT),
		f.UpdatedGTE != nil && c.UpdatedAt.Before(*f.UpdatedGTE),
		f.UpdatedLT != nil && !c.UpdatedAt.Before(*f.UpdatedLT):
		return false
	}
	return f.TitleContains == "" || c.Title != nil && containsFold(*c.Title, f.TitleContains)
}

// AllConversations iterates every conversation of every user.
func (v *View) AllConversations() iter.Seq[*Conversation] {
	return withPrefix[Conversation](v.txn, tableConversations, indexID, nil)
}

// Conversation finds a user's conversation.
func (v *View) Conversation(userID, id string) *Conversation {
	return first[Conversation](v.txn, tableConversations, indexID, keyOf(userID, id))
}

// conversationByV0ID finds a user's conversation by the id a V0 client chose.
func conversationByV0ID(txn *memdb.Txn, userID, v0 string) *Conversation {
	if v0 == "" {
		return nil
	}
	return firstWithPrefix[Conversation](txn, tableConversations, indexV0, prefixOf(userID, v0))
}

// Conversations lists a user's conversations, newest first, and returns the token of the next page
// ("" at the end).
func (v *View) Conversations(userID string, f ConversationFilter, p Page) ([]*Conversation, string) {
	return page(v.txn, tableConversations, indexCreated, userID, p,
		func(c *Conversation) bool { return c.UserID == userID }, f.takes,
		func(c *Conversation) []byte { return newestKey(userID, c.CreatedAt, c.ID) })
}

// CountConversations counts what Conversations would list on all its pages.
func (v *View) CountConversations(userID string, f ConversationFilter) int {
	n := 0
	for c := range withPrefix[Conversation](v.txn, tableConversations, indexCreated, prefixOf(userID)) {
		if f.takes(c) {
			n++
		}
	}
	return n
}

// SandboxConversations iterates the conversations in a sandbox.
func (v *View) SandboxConversations(sandboxID string) iter.Seq[*Conversation] {
	return withPrefix[Conversation](v.txn, tableConversations, indexSandbox, prefixOf(sandboxID))
}

// SubConversations returns the ids of a conversation's children, oldest first.
func (v *View) SubConversations(userID, parentID string) []string {
	var ids []string
	for c := range withPrefix[Conversation](v.txn, tableConversations, indexParent, prefixOf(userID, parentID)) {
		ids = append(ids, c.ID)
	}
	return ids
}
