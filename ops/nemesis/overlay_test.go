package nemesis

import (
	"errors"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// TestOverlay_MutateNeedsItsFunction: a mutation that changes nothing would make
// a drill's drill pass for nothing.
func TestOverlay_MutateNeedsItsFunction(t *testing.T) {
	o, err := NewOverlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Mutate("cluster/read.go", "confirmNothing", "return nil"); err == nil {
		t.Error("a function that is not there was mutated")
	}
}

// TestOverlay_ReplacesTheClock: with every change that drills make, what is
// changed is still Go, and no file that is changed reads the true clock.
func TestOverlay_ReplacesTheClock(t *testing.T) {
	o, err := NewOverlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Mutation{StaleReads, NoCommandIDs, AnyAnswer, MissingItems, MixedListings} {
		if err := m.apply(o); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(o.HoldMessages(), o.MoveClocks()); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"cluster/propose.go", "cluster/drill_clock.go", "cluster/drill_mail.go", "httpapi/call.go", "scheduler/steps.go", "fsm/command_ids.go"} {
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
