package fsm

import (
	"slices"
	"time"
)

// Bounds of what a sandbox's row keeps for its pages.
const (
	// MaxShares is how many shares of a sandbox are in force at a time.
	MaxShares = 32
	// MaxShareAge is how long a share may last.
	MaxShareAge = 30 * 24 * time.Hour
	// MaxRedeemed is how many codes of a sandbox may be redeemed in MaxCodeAge.
	MaxRedeemed = 64
	// MaxCodeAge is how long a one-time code may last.
	MaxCodeAge = time.Hour
)

// Share is a permission to use one port of a sandbox until a time. Its token is not stored: the
// nodes derive it from the sandbox's key.
type Share struct {
	ID    string    `json:"id"`
	Port  string    `json:"port"`
	Until time.Time `json:"until"`
	// Created is when it was made; zero for one that was made below protocol version 6.
	Created time.Time `json:"created,omitzero"`
}

// Redeemed is a one-time code that was used. It is kept until the code has expired.
type Redeemed struct {
	// Hash is the SHA-256 of the code in hex.
	Hash  string    `json:"hash"`
	Until time.Time `json:"until"`
}

// ShareOf returns a share of a port that is in force, nil if there is none.
func (s *Sandbox) ShareOf(id, port string, now time.Time) *Share {
	for i := range s.Shares {
		if one := &s.Shares[i]; one.ID == id && one.Port == port && now.Before(one.Until) {
			return one
		}
	}
	return nil
}

// HasRedeemed reports whether a code with the hash was used and may not have expired yet.
func (s *Sandbox) HasRedeemed(hash string) bool {
	return slices.ContainsFunc(s.Redeemed, func(one Redeemed) bool { return one.Hash == hash })
}

// SharesInForce returns the shares of a port that are in force, with "" of all ports.
func (s *Sandbox) SharesInForce(port string, now time.Time) []Share {
	return slices.DeleteFunc(slices.Clone(s.Shares), func(one Share) bool {
		return !now.Before(one.Until) || port != "" && port != one.Port
	})
}

// SandboxShareBody shares one port of a sandbox. The agent server can't be shared. An id that is
// taken, and a share beyond MaxShares in force, is CodeConflict.
type SandboxShareBody struct {
	ID   string `json:"id"`
	Port string `json:"port"`
	// Share is the new share's id, 1 to 64 letters, digits and dashes.
	Share string    `json:"share"`
	Until time.Time `json:"until"`
}

// CommandType implements Body.
func (*SandboxShareBody) CommandType() CommandType { return SandboxShare }

// check implements Body.
func (b *SandboxShareBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
	r.name("port", b.Port, MaxName)
	r.sandboxID("share id", b.Share)
	r.check(!b.Until.IsZero() && b.Until.Year() <= 9999, "until is missing")
}

func (t *transaction) applySandboxShare(b *SandboxShareBody) (Result, *Error) {
	old, err := t.ownSandbox(t.cmd.UserID, b.ID)
	if err != nil {
		return Result{}, err
	}
	if _, there := old.Template.Ports[b.Port]; !there || b.Port == PortAgentServer {
		return Result{}, Errorf(CodeNotFound, "Not Found")
	}
	if !b.Until.After(t.now) || b.Until.After(t.now.Add(MaxShareAge)) {
		return Result{}, Errorf(CodeInvalid, "a share ends in the future, in 30 days at most")
	}
	s := old.withoutExpired(t.now)
	for _, one := range s.Shares {
		if one.ID == b.Share {
			return Result{}, Errorf(CodeConflict, "the share id %s is taken", b.Share)
		}
	}
	if len(s.Shares) >= MaxShares {
		return Result{}, Errorf(CodeConflict, "a sandbox has at most %d shares at a time: revoke one first", MaxShares)
	}
	share := Share{ID: b.Share, Port: b.Port, Until: b.Until.UTC().Truncate(time.Microsecond)}
	if t.meta.active(VersionRotate) {
		share.Created = t.now
	}
	s.Shares = append(s.Shares, share)
	put(t, tableSandboxes, old, s)
	return Result{Sandbox: s}, nil
}

// SandboxUnshareBody revokes the shares of one port, or one of them. It changes nothing if there is
// none.
type SandboxUnshareBody struct {
	ID   string `json:"id"`
	Port string `json:"port"`
	// Share is the share's id, "" for all of the port.
	Share string `json:"share,omitempty"`
	// Operator: the command is an operator's, for any user's sandbox.
	Operator bool `json:"operator,omitempty"`
}

// CommandType implements Body.
func (*SandboxUnshareBody) CommandType() CommandType { return SandboxUnshare }

// check implements Body.
func (b *SandboxUnshareBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
	r.text("port", b.Port, MaxName)
	r.text("share id", b.Share, MaxName)
}

func (t *transaction) applySandboxUnshare(b *SandboxUnshareBody) (Result, *Error) {
	old, err := t.meantSandbox(b.ID, b.Operator && t.meta.active(VersionRotate))
	if err != nil {
		return Result{}, err
	}
	s := old.withoutExpired(t.now)
	s.Shares = orNil(slices.DeleteFunc(s.Shares, func(one Share) bool {
		return one.Port == b.Port && (b.Share == "" || b.Share == one.ID)
	}))
	if len(s.Shares) != len(old.Shares) {
		put(t, tableSandboxes, old, s)
	}
	return Result{Sandbox: s}, nil
}

// SandboxRedeemBody uses a one-time code of a sandbox of Command.UserID. A code that was used is
// CodeConflict, on every node. So is one beyond MaxRedeemed that could still be used.
type SandboxRedeemBody struct {
	ID string `json:"id"`
	// Hash is the SHA-256 of the code in hex, Until when the code expires.
	Hash  string    `json:"hash"`
	Until time.Time `json:"until"`
}

// CommandType implements Body.
func (*SandboxRedeemBody) CommandType() CommandType { return SandboxRedeem }

// check implements Body.
func (b *SandboxRedeemBody) check(r *rules) {
	r.lookedUp("sandbox id", b.ID)
	r.hash("hash", b.Hash)
	r.check(!b.Until.IsZero() && b.Until.Year() <= 9999, "until is missing")
}

func (t *transaction) applySandboxRedeem(b *SandboxRedeemBody) (Result, *Error) {
	old, err := t.ownSandbox(t.cmd.UserID, b.ID)
	if err != nil {
		return Result{}, err
	}
	s := old.withoutExpired(t.now)
	switch {
	case s.HasRedeemed(b.Hash) || !b.Until.After(t.now):
		return Result{}, Errorf(CodeConflict, "the code was used, or has expired")
	case b.Until.After(t.now.Add(MaxCodeAge)):
		return Result{}, Errorf(CodeInvalid, "a code lasts %s at most", MaxCodeAge)
	case len(s.Redeemed) >= MaxRedeemed:
		return Result{}, Errorf(CodeConflict, "too many pages of the sandbox were opened just now: try again in some minutes")
	}
	s.Redeemed = append(s.Redeemed, Redeemed{Hash: b.Hash, Until: b.Until.UTC().Truncate(time.Microsecond)})
	put(t, tableSandboxes, old, s)
	return Result{}, nil
}

// withoutExpired returns a copy of the row without shares and codes that have expired.
func (s *Sandbox) withoutExpired(now time.Time) *Sandbox {
	next := *s
	next.Shares = orNil(slices.DeleteFunc(slices.Clone(s.Shares), func(one Share) bool { return !now.Before(one.Until) }))
	next.Redeemed = orNil(slices.DeleteFunc(slices.Clone(s.Redeemed),
		func(one Redeemed) bool { return !now.Before(one.Until) }))
	return &next
}

// orNil returns nil for an empty list, which a snapshot leaves out.
func orNil[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}
