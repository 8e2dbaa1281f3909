package fsm

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// goldenBinary are commands whose bytes are the lines of testdata/command_binary.txt.
func goldenBinary() []Command {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	resume := NewCommand("c-1", at, "ada", &SandboxResumeBody{ID: "s<1>"})
	resume.Fingerprint, resume.Credential.Lookup = "f-1", "0123456789ab"
	pause := NewCommand("c-2", at, "ada", &SandboxPauseBody{ID: "s1"})
	pause.Credential = Credential{SandboxID: "s1", KeyHash: "h"}
	return []Command{
		resume, pause,
		NewCommand("c-3", at, "", &ProtocolRaiseBody{Version: VersionBinary}),
		NewCommand("c-4", time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC), "",
			&OrphanForgetBody{OrphanJob, []string{strings.Repeat("x", 300)}}),
	}
}

// TestEncodeBinary_Golden: logs hold these bytes, so they are read and written as they are for ever.
func TestEncodeBinary_Golden(t *testing.T) {
	file, err := os.ReadFile("testdata/command_binary.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(file)), "\n")
	for i, want := range goldenBinary() {
		raw, err := want.EncodeBinary()
		if err != nil {
			t.Fatal(err)
		}
		if i >= len(lines) || strconv.QuoteToASCII(string(raw)) != lines[i] {
			t.Errorf("line %d is to be\n%s", i+1, strconv.QuoteToASCII(string(raw)))
			continue
		}
		got, err := DecodeCommand(raw)
		if err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("line %d: %v %s", i+1, err, cmp.Diff(want, got))
		}
	}
}

// TestEncodeBinary_EveryType: a command of each type is read alike from both forms, and the binary one
// is shorter, so that what fits the log in one form does in the other.
func TestEncodeBinary_EveryType(t *testing.T) {
	f := newFixture(t)
	ofUsers, ofLeader := seedBodies(f.now)
	for _, body := range append(ofUsers, ofLeader...) {
		cmd := f.command("ada", body)
		text, err := cmd.Encode()
		if err != nil {
			t.Fatal(err)
		}
		binary, err := cmd.EncodeBinary()
		if err != nil {
			t.Fatal(err)
		}
		one, err := DecodeCommand(text)
		if err != nil {
			t.Fatal(err)
		}
		two, err := DecodeCommand(binary)
		if err != nil || cmp.Diff(one, two) != "" {
			t.Errorf("%s: %v %s", cmd.Type, err, cmp.Diff(one, two))
		}
		if len(binary) >= len(text) {
			t.Errorf("%s: %d bytes, in JSON %d", cmd.Type, len(binary), len(text))
		}
		for end := range min(len(binary), 120) {
			if _, err := DecodeCommand(binary[:end]); err == nil {
				t.Errorf("%s is read from %d of %d bytes", cmd.Type, end, len(binary))
			}
		}
	}
}

// TestEncodeBinary_Refuses what DecodeCommand would not take, since a log entry that can't be read
// stops every node.
func TestEncodeBinary_Refuses(t *testing.T) {
	for name, change := range map[string]func(*Command){
		"text": func(c *Command) { c.Fingerprint = "\xff" },
		"time": func(c *Command) { c.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"size": func(c *Command) { c.Fingerprint = strings.Repeat("x", MaxCommandBytes) },
	} {
		cmd := goldenBinary()[0]
		change(&cmd)
		if _, err := cmd.EncodeBinary(); CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEncodeBinary_Times: any time that JSON can say comes back.
func TestEncodeBinary_Times(t *testing.T) {
	for _, at := range []time.Time{
		{}, time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(0, 12, 31, 23, 59, 59, 999999000, time.UTC),
		time.Date(1969, 12, 31, 23, 59, 59, 999999000, time.UTC), time.Unix(0, 0).UTC(),
		time.Date(2028, 2, 29, 12, 0, 0, 1000, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
	} {
		cmd := goldenBinary()[0]
		cmd.Time = at
		sameInBinary(t, cmd)
		raw, err := cmd.EncodeBinary()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeCommand(raw); err != nil || got.Time != at {
			t.Errorf("%v is read as %v, %v", at, got.Time, err)
		}
	}
}

// TestCheckLogged_Binary: a program refuses a log with a newer version in either form, in words.
func TestCheckLogged_Binary(t *testing.T) {
	for version, want := range map[int]string{ProtocolVersion: "", ProtocolVersion + 1: "start the newer program again"} {
		cmd := NewCommand("c", testEpoch, "", &ProtocolRaiseBody{Version: version})
		for _, encode := range []func() ([]byte, error){cmd.Encode, cmd.EncodeBinary} {
			raw, err := encode()
			if err != nil {
				t.Fatal(err)
			}
			err = CheckLogged(raw)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%.30q: %v, want %q", raw, err, want)
			}
		}
	}
}

// sameInBinary fails unless a decoded command is the same after a passage through the binary form.
func sameInBinary(t testing.TB, cmd Command) {
	t.Helper()
	raw, err := cmd.EncodeBinary()
	if CodeOf(err) == CodeInvalid {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeCommand(raw)
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	again, err := got.EncodeBinary()
	if err != nil || !bytes.Equal(raw, again) {
		t.Fatalf("said again it is another: %q, %q, %v", raw, again, err)
	}
	cmd.Time = cmd.Time.UTC().Truncate(time.Microsecond)
	cmd = recode(t, cmd) // what JSON leaves out, such as an empty list
	if d := cmp.Diff(cmd, got); d != "" {
		t.Fatalf("%q: %s", raw, d)
	}
}
