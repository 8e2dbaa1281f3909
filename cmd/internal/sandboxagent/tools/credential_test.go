package tools

import (
	"os"
	"strconv"
	"syscall"
	"testing"
)

// A shell of another user works, and all that it started ends with it: also what has left its
// session, which only its environment tells.
func TestTerminal_OfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs commands as another user")
	}
	dir, err := os.MkdirTemp("", "bivouac-tools-") // the test's own directory is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	s, _ := opened(t, func(c *Config) {
		c.WorkingDir, c.Credential = dir, &syscall.Credential{Uid: 65534, Gid: 65534}
	})
	if o := s.sh(t, args{"command": "id -u; id -G; touch made; stat -c %u made"}); o.out() != "65534\n65534\n65534" {
		t.Fatalf("the shell prints %q", o.out())
	}
	o := s.sh(t,
		args{"command": "(setsid sh -c 'setsid sleep 1000 & echo $! > pid' &) ; while [ ! -s pid ]; do :; done; cat pid"})
	pid, err := strconv.Atoi(o.out())
	if err != nil {
		t.Fatal(o.out())
	}
	s.Close()
	if _, _, runs := stat(pid); runs {
		t.Errorf("the process %d runs after its shell was closed", pid)
	}
}
