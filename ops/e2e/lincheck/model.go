package lincheck

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// The models. Their state is a Value, so that == compares it.
//
// Settings: A is llm_model, which a write without it keeps (Keep). B is git_user_name and C the
// URL of an MCP server; a write without them clears both. C is stored in the secret store.
//
// Conversations and specs: see group.
//
// Sandbox: A is the part of the state that only requests change: "running", "pausing" until a
// client saw it PAUSED, "paused" from then on. The scheduler may set the other states at any
// time, with two exceptions: a sandbox that should run is never shown PAUSED, and one that was
// shown PAUSED stays so until a resume.
const (
	sandboxRunning = "running"
	sandboxPausing = "pausing"
	sandboxPaused  = "paused"
	shownPaused    = "PAUSED"
)

// The names of writes.
const (
	Read   = "read"
	List   = "list"
	Put    = "put"
	Create = "create"
	Rename = "rename"
	Delete = "delete"
	Pause  = "pause"
	Resume = "resume"
	// Replay repeats an earlier write with its Idempotency-Key: it gets a response and changes
	// nothing.
	Replay = "replay"
)

// input and output are porcupine's arguments of step.
type input struct{ op Op }

type output struct {
	known bool
	value Value
}

// stepFunc applies op to a state. With known, op's response must match the state. Without, any
// response is possible.
type stepFunc func(state Value, op Op, known bool) (bool, Value)

// modelFor makes the model of one object, or of the ops' group.
func modelFor(object Object, ops []Op) porcupine.Model {
	switch object {
	case Settings:
		return modelOf(stepSettings)
	case Sandbox:
		return modelOf(stepSandbox)
	default:
		return newGroup(ops).model()
	}
}

func stepSettings(state Value, op Op, known bool) (bool, Value) {
	switch op.Do {
	case Read:
		return !known || op.Out == state, state
	case Replay:
		return true, state
	}
	next := op.In
	next.There, next.Keep = true, false
	if op.In.Keep {
		next.A = state.A
	}
	return true, next
}

func stepSandbox(state Value, op Op, known bool) (bool, Value) {
	switch op.Do {
	case Read:
		return readSandbox(state, op.Out, known)
	case Create:
		return !state.There, Value{There: true, A: sandboxRunning}
	}
	if op.Do == Replay {
		return true, state // its response is the first one's
	}
	if !state.There {
		return !known || !op.Out.There, state
	}
	next := state
	switch op.Do {
	case Pause:
		if state.A == sandboxRunning {
			next.A = sandboxPausing
		}
	case Resume:
		next.A = sandboxRunning
	case Delete:
		next = Value{}
	}
	return !known || op.Out.There, next
}

func readSandbox(state, out Value, known bool) (bool, Value) {
	switch {
	case !known:
		return true, state
	case out.There != state.There:
		return false, state
	case !state.There:
		return true, state
	}
	switch state.A {
	case sandboxPausing:
		if out.A == shownPaused {
			state.A = sandboxPaused
		}
		return true, state
	case sandboxPaused:
		return out.A == shownPaused, state
	default:
		return out.A != shownPaused, state
	}
}

// modelOf makes porcupine's model from a stepFunc.
func modelOf(step stepFunc) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return Value{} },
		Step: func(state, in, out any) (bool, any) {
			op, o := in.(input).op, out.(output)
			op.Out = o.value
			return step(state.(Value), op, o.known)
		},
		DescribeOperation: describe,
		DescribeState:     func(state any) string { return state.(Value).String() },
	}
}

// describe formats an op for a visualisation.
func describe(in, out any) string {
	op, o := in.(input).op, out.(output)
	told := "?"
	if o.known {
		told = o.value.String()
	}
	about := op.In.String()
	if op.Of != "" {
		about = fmt.Sprintf("%.8s %s", op.Key, about)
	}
	for _, item := range op.Items {
		told += fmt.Sprintf(" %.8s=%s", item.ID, item.Value)
	}
	return fmt.Sprintf("%s(%s) on %s -> %s [index %d]", op.Do, about, op.Node, told, op.Index)
}

// String formats a value for a visualisation.
func (v Value) String() string {
	if !v.There && v == (Value{}) {
		return "-"
	}
	text := v.A
	if v.Keep {
		text = "*"
	}
	if v.B != "" || v.C != "" {
		text += "," + v.B + "," + v.C
	}
	return text
}
