package chaos

import (
	"errors"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOverlay_MutateNeedsItsFunction: with a mutation that changes nothing, the test of a drill
// would pass without a fault.
func TestOverlay_MutateNeedsItsFunction(t *testing.T) {
	o, err := NewOverlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Mutate("cluster/read.go", "confirmNothing", "return nil"); err == nil {
		t.Error("a function that is not there was mutated")
	}
}

// TestOverlay_ReplacesTheClock: after all changes that drills make, the changed files are valid
// Go, and none of them reads the real clock.
func TestOverlay_ReplacesTheClock(t *testing.T) {
	o, err := NewOverlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Mutation{StaleReads, NoCommandIDs, AnyAnswer, AnySender, MissingItems, MixedListings} {
		if err := m.apply(o); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(o.HoldMessages(), o.MoveClocks()); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{
		"cluster/propose.go",
		"cluster/drill_clock.go",
		"cluster/drill_mail.go",
		"httpapi/request/call.go",
		"scheduler/steps.go",
		"fsm/command_ids.go",
	} {
		if o.changed[file] == nil {
			t.Errorf("%s is not changed", file)
		}
	}
	for file, text := range o.changed {
		if _, err := parser.ParseFile(token.NewFileSet(), file, text, 0); err != nil {
			t.Error(err)
		}
		if strings.Contains(string(text), "time.Now()") && !strings.HasSuffix(file, "drill_clock.go") {
			t.Errorf("%s still reads the true clock", file)
		}
	}
}

// TestMutations_Build: every mutation finds its functions, and the program builds with all of
// them. A renamed function would show in the long drills only.
func TestMutations_Build(t *testing.T) {
	overlay, err := Build(t.TempDir(), StaleReads, NoCommandIDs, AnyAnswer, AnySender, LateSnapshots, SmallSegments,
		MissingItems, MixedListings)
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-overlay", overlay, "-o", os.DevNull, "bivouac.dev/bivouac/cmd/bivouac")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
