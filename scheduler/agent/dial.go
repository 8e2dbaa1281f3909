package agent

import (
	"context"
	"net"
	"time"
)

// lostAfter is how long a first attempt to connect may be silent. A container's port drops what comes
// before its network stands, and the kernel sends a lost SYN again after a second only.
const lostAfter = 250 * time.Millisecond

// dialFunc connects, as net.Dialer.DialContext does.
type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dial makes a second attempt, for as long as timeout in all, when the first was silent for lost.
func dial(connect dialFunc, lost, timeout time.Duration) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		first, cancelFirst := context.WithTimeout(ctx, lost)
		conn, err := connect(first, network, addr)
		silent := first.Err() != nil
		cancelFirst()
		if err == nil || !silent || ctx.Err() != nil {
			return conn, err
		}
		return connect(ctx, network, addr)
	}
}
