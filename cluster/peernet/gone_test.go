package peernet

import (
	"net"
	"testing"
)

// TestPeerPort_Gone: a process that does not accept is there, one that was killed
// is not.
func TestPeerPort_Gone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var p Port
	if p.Gone(t.Context(), l.Addr().String()) {
		t.Error("a listener that accepts nothing is said to be gone")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if !p.Gone(t.Context(), l.Addr().String()) {
		t.Error("a closed listener is not said to be gone")
	}
}
