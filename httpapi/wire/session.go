package wire

// SignedIn is the answer to a sign-in. Location is the path where the browser goes on.
type SignedIn struct {
	User     string `json:"user"`
	Location string `json:"location"`
}

// CodeOwner is whose session a sign-in code opens, and the name of the key that it was asked with.
type CodeOwner struct {
	User string `json:"user"`
	Key  string `json:"key"`
}

// SignInCode is a code that opens one session.
type SignInCode struct {
	Code      string `json:"code"`
	ExpiresAt Time   `json:"expires_at"`
}

// Authenticated is who a good session or key acts for.
type Authenticated struct {
	User string `json:"user"`
}
