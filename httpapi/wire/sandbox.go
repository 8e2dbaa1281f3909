package wire

import (
	"bivouac.dev/bivouac/fsm"
)

// OwnedSandbox is a sandbox in the operator API. It has neither its key nor its URLs.
type OwnedSandbox struct {
	ID           string           `json:"id"`
	UserID       string           `json:"user_id"`
	SpecID       string           `json:"sandbox_spec_id"`
	Status       fsm.SandboxState `json:"status"`
	StatusDetail *string          `json:"status_detail"`
	Isolation    fsm.Isolation    `json:"isolation"`
	// NomadClient is the id of the client that runs it, null where none does.
	NomadClient *string `json:"nomad_client"`
	CreatedAt   Time    `json:"created_at"`
}

// OwnedConversation is a conversation in the operator API, without what was said in it.
type OwnedConversation struct {
	ID        string  `json:"id"`
	UserID    string  `json:"user_id"`
	SandboxID string  `json:"sandbox_id"`
	Title     *string `json:"title"`
	CreatedAt Time    `json:"created_at"`
	UpdatedAt Time    `json:"updated_at"`
}

// Share is a share of a sandbox's port, without its token.
type Share struct {
	ID   string `json:"id"`
	Port string `json:"port"`
	// CreatedAt is null for a share of an earlier program.
	CreatedAt *Time `json:"created_at"`
	ExpiresAt Time  `json:"expires_at"`
}

// CreatedShare is a share that was just made. Its URL has the token in the fragment.
type CreatedShare struct {
	Share
	URL string `json:"url"`
}
