package fsm

import (
	"bytes"
	"encoding/base64"

	"github.com/hashicorp/go-memdb"
)

// operators refuses a command that was not asked with an operator's key.
func (t *transaction) operators() *Error {
	key := first[APIKey](t.txn, tableAPIKeys, indexLookup, []byte(t.cmd.Credential.Lookup))
	ofKey := key != nil && !t.cmd.Credential.ofSession()
	if ofKey && key.IsOperator() && key.UserID == t.cmd.UserID && t.usable(key) {
		return nil
	}
	return Errorf(CodeForbidden, "this needs an operator's key")
}

// meantSandbox finds the sandbox that a command is about: one of the user's, or an operator's
// choice. Below VersionAccess some nodes do not know operators' commands, so none does.
func (t *transaction) meantSandbox(id string, operator bool) (*Sandbox, *Error) {
	if !operator || !t.meta.active(VersionAccess) {
		return t.ownSandbox(t.cmd.UserID, id)
	}
	if err := t.operators(); err != nil {
		return nil, err
	}
	s := first[Sandbox](t.txn, tableSandboxes, indexID, []byte(id))
	if s == nil || s.Member() {
		return nil, Errorf(CodeNotFound, "Not Found")
	}
	return t.ownSandbox(s.UserID, id)
}

// OwnedSandboxes lists a user's sandboxes that are not being deleted, newest first; with "" every
// user's, by id. It returns the token of the next page ("" at the end). It is for operators.
func (v *View) OwnedSandboxes(userID string, p Page) ([]*Sandbox, string) {
	if userID != "" {
		return v.Sandboxes(userID, p)
	}
	return pageOfAll(v.txn, tableSandboxes, p,
		func(s *Sandbox) bool { return !s.Member() && s.Desired != DesiredDeleted },
		func(s *Sandbox) []byte { return []byte(s.ID) })
}

// OwnedConversations lists a user's conversations, newest first; with "" every user's, by user and
// id. It returns the token of the next page ("" at the end). It is for operators.
func (v *View) OwnedConversations(userID string, p Page) ([]*Conversation, string) {
	if userID != "" {
		return v.Conversations(userID, ConversationFilter{IncludeSub: true}, p)
	}
	return pageOfAll(v.txn, tableConversations, p,
		func(*Conversation) bool { return true },
		func(c *Conversation) []byte { return keyOf(c.UserID, c.ID) })
}

// pageOfAll reads one page of a whole table by its ids. It seeks, so every page costs the same.
func pageOfAll[T any](txn *memdb.Txn, table string, p Page, takes func(*T) bool, key func(*T) []byte) ([]*T, string) {
	after, err := base64.RawURLEncoding.DecodeString(p.After)
	if err != nil {
		after = nil
	}
	rows := []*T{}
	for row := range from[T](txn, table, indexID, after) {
		if !takes(row) || len(after) > 0 && bytes.Equal(key(row), after) {
			continue
		}
		if len(rows) == p.limit() {
			return rows, token(key(rows[len(rows)-1]))
		}
		rows = append(rows, row)
	}
	return rows, ""
}
