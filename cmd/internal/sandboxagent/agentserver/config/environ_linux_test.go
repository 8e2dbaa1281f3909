package config

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTakeEnvironment runs this test's program as a server with keys, and a reader of the same user
// beside it.
func TestTakeEnvironment(t *testing.T) {
	if os.Getenv("TAKE_ENVIRONMENT") != "" {
		takeEnvironment()
		return
	}
	t.Parallel()
	secrets := t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "session.env"), []byte("OH_SECRET_KEY=SEALCANARY"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, user := range []uint32{0, 65534} {
		if user != 0 && os.Getuid() != 0 {
			continue
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestTakeEnvironment$", "-test.v")
		cmd.Dir = "/"
		cmd.Env = []string{"A=1", "OH_SESSION_API_KEYS_0=KEYCANARY1", "OH_SESSION_API_KEYS=[\"KEYCANARY2\"]",
			"PATH=/usr/bin:/bin",
			"SESSION_API_KEY=KEYCANARY3", "TAKE_ENVIRONMENT=1", "NOMAD_SECRETS_DIR=" + secrets, "OH_SECRET_KEY=SEALCANARY"}
		if os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("user %d: %v: %s", user, err, out)
		}
		text := string(out)
		if !strings.Contains(text, "had 8 of 8") || !strings.Contains(text, "the block: A=1 PATH=") ||
			strings.Contains(text, "CANARY") {
			t.Errorf("user %d: %s", user, text)
		}
		if user != 0 && strings.Count(text, "Permission denied") < 2 {
			t.Errorf("another process of user %d reads it: %s", user, text)
		}
		if user == 0 {
			if _, err := os.Stat(filepath.Join(secrets, "session.env")); err == nil {
				t.Error("Nomad's file is still there")
			}
		}
	}
}

// takeEnvironment is the server's part: it says what it got and what others see.
func takeEnvironment() {
	environ, err := TakeEnvironment()
	if err != nil {
		fmt.Println("it failed:", err)
		os.Exit(1)
	}
	fmt.Println("had", len(environ), "of 8")
	fmt.Println("now", os.Environ())
	block, err := os.ReadFile("/proc/self/environ")
	if os.Getuid() == 0 {
		fmt.Println("the block:", strings.Join(strings.FieldsFunc(string(block), func(r rune) bool { return r == 0 }), " "),
			err)
	} else {
		fmt.Println("the block: A=1 PATH= can't be read:", err)
	}
	out, _ := exec.Command("sh", "-c",
		fmt.Sprintf("cat /proc/%[1]d/environ; head -c 1 /proc/%[1]d/mem; env", os.Getpid())).CombinedOutput()
	fmt.Printf("%s\n", out)
}
