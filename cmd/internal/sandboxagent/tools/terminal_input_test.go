package tools

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestTerminal_AProgramThatAsks sends inputs to programs that wait in the ways that there are. Each call
// returns when the program has done with its input and waits for more, and no sooner.
func TestTerminal_AProgramThatAsks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ program, command, input, want string }{
		"a builtin":      {"bash", `while read -p "> " x; do echo "got $x"; done`, "one", "got one"},
		"cat":            {"cat", "cat", "one", "one"},
		"python":         {"python3", "python3 -i -q", "print(6*7)", "42"},
		"python's input": {"python3", `python3 -c 'while True: print("got", input("? "))'`, "one", "got one"},
		"node":           {"node", "node -i", "console.log(6*7)", "42"},
		"select": {"python3", `python3 -c 'import select, sys
while select.select([sys.stdin], [], []): print("got", sys.stdin.readline())'`, "one", "got one"},
		"poll": {"python3", `python3 -c 'import select, sys
p = select.poll(); p.register(0, select.POLLIN)
while p.poll(): print("got", sys.stdin.readline())'`, "one", "got one"},
		"one that works first": {"bash", `while read x; do sleep 1.5; echo "did $x"; done`, "it", "did it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(c.program); err != nil {
				t.Skip(c.program + " is not installed")
			}
			s, _ := opened(t, func(c *Config) { c.SoftTimeout = 2 * time.Second })
			if o := s.sh(t, args{"command": c.command}); o.code() != -1 {
				t.Fatalf("the program has ended: %s", o.out())
			}
			s.tool(TerminalName).(*Terminal).c.SoftTimeout = time.Hour // only the question ends the call
			for range 2 {
				o := s.sh(t, args{"command": c.input, "is_input": true})
				if o.code() != -1 || !strings.Contains(o.out(), c.want) || !strings.Contains(o.Meta.Suffix, "waits for input") {
					t.Errorf("%d %q %q", o.code(), o.out(), o.Meta.Suffix)
				}
			}
			if o := s.sh(t, args{"command": "C-c", "is_input": true}); o.code() == -1 && name != "python" && name != "node" {
				t.Errorf("after C-c: %q", o.out())
			}
		})
	}
}
