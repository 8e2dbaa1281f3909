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

// TestTerminal_SoftTimeoutAndInput starts a program that is silent and reads, and talks to it.
func TestTerminal_SoftTimeoutAndInput(t *testing.T) {
	s, _ := opened(t, func(c *Config) { c.SoftTimeout = 1500 * time.Millisecond })
	if o := s.sh(t, args{"command": ""}); !o.IsError || !strings.Contains(o.out(),
		"No previous running command to retrieve") {
		t.Errorf("without a command: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "y", "is_input": true}); !o.IsError ||
		!strings.Contains(o.out(), "No previous running command to interact") {
		t.Errorf("input without a command: %s", o.raw)
	}
	o := s.sh(t, args{"command": "echo begun; read a; echo got $a; read b; echo end $b"})
	if o.code() != -1 || o.out() != "begun" || !strings.Contains(o.Meta.Suffix, "no new output after 1.5 seconds") ||
		o.Timeout {
		t.Fatalf("a silent command: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "echo other"}); o.code() != -1 || !strings.Contains(o.Meta.Suffix, "NOT executed") {
		t.Errorf("a second command: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "one", "is_input": true}); o.code() != -1 || o.out() != "got one" {
		t.Errorf("input: %s", o.raw)
	}
	if o := s.sh(t, args{"command": "two", "is_input": true}); o.code() != 0 || o.out() != "end two" {
		t.Errorf("more input: %s", o.raw)
	}
	s.sh(t, args{"command": "cat"})
	if o := s.sh(t, args{"command": "C-d", "is_input": true}); o.code() != 0 {
		t.Errorf("the end of the input: %s", o.raw)
	}
	s.sh(t, args{"command": "sleep 1000"})
	if o := s.sh(t, args{"command": "C-c"}); o.code() != 130 {
		t.Errorf("C-c: %s", o.raw)
	}
	s.sh(t, args{"command": "sleep 1000"})
	if o := s.sh(t, args{"command": "C-z", "is_input": true}); o.code() != 148 {
		t.Errorf("C-z: %s", o.raw)
	}
	s.sh(t, args{"command": "fg"})
	if o := s.sh(t, args{"command": "C-c", "is_input": true}); o.code() != 130 {
		t.Errorf("C-c of the job in front: %s", o.raw)
	}
}

// TestTerminal_InputIsNoCommand sends input that nobody reads; it must not become a command later.
func TestTerminal_InputIsNoCommand(t *testing.T) {
	s, dir := opened(t, func(c *Config) { c.SoftTimeout = 200 * time.Millisecond })
	s.sh(t, args{"command": "sleep 0.6"})
	s.sh(t, args{"command": "touch " + dir + "/made\ntouch " + dir + "/made", "is_input": true})
	for s.sh(t, args{"command": ""}).code() == -1 {
	}
	if o := s.sh(t, args{"command": "ls"}); o.out() != "" {
		t.Errorf("unread input was run as a command: %s", o.raw)
	}
}
