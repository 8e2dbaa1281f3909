package credential

import (
	"context"
	"syscall"
)

type userKey struct{}

// NewContext returns a context of a request whose commands run as a user.
func NewContext(ctx context.Context, as *syscall.Credential) context.Context {
	return context.WithValue(ctx, userKey{}, as)
}

// FromContext returns the user that the commands of a request run as; nil is the process's own.
func FromContext(ctx context.Context) *syscall.Credential {
	as, _ := ctx.Value(userKey{}).(*syscall.Credential)
	return as
}
