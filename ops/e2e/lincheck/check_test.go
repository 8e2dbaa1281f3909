package lincheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// at makes an op on a user's settings from call to ret, in milliseconds.
func at(call, ret int, op Op) Op {
	if op.Object == "" {
		op.Object = Settings
	}
	op.Key = "k"
	op.Call, op.Return = time.Duration(call)*time.Millisecond, time.Duration(ret)*time.Millisecond
	if op.Outcome == "" {
		op.Outcome = Done
	}
	if op.Node == "" {
		op.Node = "n1"
	}
	return op
}

func put(name string) Op { return Op{Do: Put, In: Value{A: "m" + name, B: name}} }
func got(name string) Op { return Op{Do: Read, Out: Value{There: true, A: "m" + name, B: name}} }

func (op Op) with(change func(*Op)) Op {
	change(&op)
	return op
}

func index(i uint64) func(*Op) { return func(op *Op) { op.Index, op.Life = i, 2 } }

func boxOp(do string, there bool, state string) Op {
	return Op{Object: Sandbox, Do: do, Out: Value{There: there, A: state}}
}

func talkOp(do, title string, there bool) Op {
	op := Op{Object: Conversation, Of: "u", Do: do, Out: Value{There: there, A: title}}
	if do == Create || do == Rename {
		op.In = Value{There: true, A: title}
	}
	return op
}

// TestJudge_ManyDeletions: deletions of unknown outcome are decided about, however many there are.
func TestJudge_ManyDeletions(t *testing.T) {
	t.Parallel()
	history := func(last string) []Op {
		ops := []Op{at(0, 1, boxOp(Create, true, ""))}
		for i := range 30 {
			for k, do := range []string{Delete, Pause, Resume, Delete} {
				op := at(10*i+2+k, 10*i+3+k, boxOp(do, false, ""))
				op.Outcome = Unknown
				ops = append(ops, op)
			}
			if i == 1 {
				ops = append(ops, at(10*i+7, 10*i+8, boxOp(Read, true, "RUNNING")), at(10*i+8, 10*i+9, boxOp(Read, false, "")))
			}
		}
		return append(ops, at(400, 401, boxOp(Read, last != "", last)))
	}
	paused := append(history(""), at(500, 501, boxOp(Read, true, "PAUSED")))
	if v := Judge(paused[1:], t.TempDir()); len(v.Wrong) != 1 {
		t.Errorf("PAUSED when it is gone: %q", v.Wrong)
	}
	if v := Judge(history(""), t.TempDir()); len(v.Wrong) > 0 {
		t.Errorf("a deletion at some time: %q", v.Wrong)
	}
	if v := Judge(history("RUNNING"), t.TempDir()); len(v.Wrong) != 1 || !strings.Contains(v.Wrong[0], "has no order") {
		t.Errorf("a sandbox that comes back: %q", v.Wrong)
	}
}

func TestJudge(t *testing.T) {
	nothing := func(op *Op) { op.Outcome = Nothing }
	unknown := func(op *Op) { op.Outcome = Unknown }
	stale := func(op *Op) { op.Stale = true }
	for name, c := range map[string]struct {
		ops []Op
		// wrong is part of the expected finding, "" for none.
		wrong string
	}{
		"in order":         {[]Op{at(0, 1, put("a")), at(2, 3, got("a")), at(4, 5, put("b")), at(6, 7, got("b"))}, ""},
		"an old value":     {[]Op{at(0, 1, put("a")), at(2, 3, put("b")), at(4, 5, got("a"))}, "has no order"},
		"beside the write": {[]Op{at(0, 1, put("a")), at(2, 9, put("b")), at(3, 4, got("b")), at(3, 5, got("a"))}, ""},
		"new, then old": {
			[]Op{at(0, 1, put("a")), at(2, 9, put("b")), at(3, 4, got("b")), at(5, 6, got("a"))},
			"has no order",
		},
		"unknown, seen late": {
			[]Op{at(0, 1, put("a")), at(2, 3, put("b").with(unknown)), at(4, 5, got("a")), at(6, 7, got("b"))},
			"",
		},
		"unknown, seen twice": {
			[]Op{at(0, 1, put("a")), at(2, 3, put("b").with(unknown)), at(4, 5, got("b")), at(6, 7, got("a"))},
			"has no order",
		},
		"refused and done": {[]Op{at(0, 1, put("a").with(nothing)), at(2, 3, got("a"))}, "was refused"},
		"invented":         {[]Op{at(0, 1, put("a")), at(2, 3, got("b").with(stale))}, "was never written"},
		"lost":             {[]Op{at(0, 1, put("a")), at(2, 3, Op{Do: Read})}, "has no order"},
		"a member that stays": {
			[]Op{
				at(0, 1, put("a")),
				at(2, 3, Op{Do: Put, In: Value{B: "b", Keep: true}}),
				at(4, 5, Op{Do: Read, Out: Value{There: true, A: "ma", B: "b"}}),
			},
			"",
		},
		"a member that is lost": {[]Op{at(0, 1, put("a")), at(2, 3, Op{Do: Put, In: Value{B: "b", Keep: true}}),
			at(4, 5, Op{Do: Read, Out: Value{There: true, B: "b"}})}, "has no order"},
		"a replay that undoes": {
			[]Op{at(0, 1, put("a")), at(2, 3, put("b")), at(4, 5, Op{Do: Replay}), at(6, 7, got("a"))},
			"has no order",
		},
		"stale": {
			[]Op{
				at(0, 1, put("a").with(index(5))),
				at(2, 3, put("b").with(index(6))),
				at(4, 5, got("a").with(index(5)).with(stale).with(func(op *Op) { op.Node = "n2" })),
			},
			"",
		},
		"stale, backwards": {[]Op{at(0, 1, put("a").with(index(5))), at(2, 3, put("b").with(index(6))),
			at(4, 5, got("b").with(index(6)).with(stale)), at(6, 7, got("a").with(index(5)).with(stale))}, "went backwards"},
		"stale, after a restart": {[]Op{at(0, 1, put("a").with(index(5))), at(2, 3, put("b").with(index(6))),
			at(4, 5, got("a").with(index(5)).with(stale).with(func(op *Op) { op.Life = 4 }))}, ""},
		"an index of the past": {
			[]Op{at(0, 1, put("a").with(index(5))), at(2, 3, got("a").with(index(4)).with(func(op *Op) { op.Node = "n2" }))},
			"after n1 had told of index 5",
		},
		"not the last one": {[]Op{at(0, 1, put("a").with(index(5))), at(2, 3, put("b").with(index(6))),
			at(0, 9, got("a").with(index(7)))}, "not the last one"},
		"a conversation": {
			[]Op{
				at(0, 1, talkOp(Create, "a", true)),
				at(2, 3, talkOp(Rename, "b", true)),
				at(4, 5, talkOp(Read, "b", true)),
				at(6, 7, talkOp(Delete, "", true)),
				at(8, 9, talkOp(Read, "", false)),
				at(10, 11, talkOp(Rename, "c", false).with(func(op *Op) { op.Out = Value{} })),
			},
			"",
		},
		"one that comes back": {
			[]Op{at(0, 1, talkOp(Create, "a", true)), at(2, 3, talkOp(Delete, "", true)), at(4, 5, talkOp(Read, "a", true))},
			"has no order",
		},
		"a sandbox": {
			[]Op{
				at(0, 1, boxOp(Create, true, "")),
				at(2, 3, boxOp(Read, true, "STARTING")),
				at(4, 5, boxOp(Pause, true, "")),
				at(6, 7, boxOp(Read, true, "RUNNING")),
				at(8, 9, boxOp(Read, true, "PAUSED")),
				at(10, 11, boxOp(Resume, true, "")),
				at(12, 13, boxOp(Read, true, "STARTING")),
			},
			"",
		},
		"a pause undone": {
			[]Op{
				at(0, 1, boxOp(Create, true, "")),
				at(2, 3, boxOp(Pause, true, "")),
				at(4, 5, boxOp(Read, true, "PAUSED")),
				at(6, 7, boxOp(Read, true, "RUNNING")),
			},
			"has no order",
		},
		"a pause nobody asked": {
			[]Op{at(0, 1, boxOp(Create, true, "")), at(2, 3, boxOp(Read, true, "PAUSED"))},
			"has no order",
		},
		"a pause replayed": {
			[]Op{
				at(0, 1, boxOp(Create, true, "")),
				at(2, 3, boxOp(Pause, true, "")),
				at(4, 5, boxOp(Resume, true, "")),
				at(6, 7, boxOp(Replay, true, "")),
				at(8, 9, boxOp(Read, true, "PAUSED")),
			},
			"has no order",
		},
		"deleted and there": {
			[]Op{at(0, 1, boxOp(Create, true, "")), at(2, 3, boxOp(Delete, true, "")), at(4, 5, boxOp(Read, true, "RUNNING"))},
			"has no order",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			v := Judge(c.ops, dir)
			all := strings.Join(v.Wrong, "\n")
			if c.wrong == "" && len(v.Wrong) > 0 || !strings.Contains(all, c.wrong) {
				t.Fatalf("want %q, got %q", c.wrong, all)
			}
			drawn, err := filepath.Glob(filepath.Join(dir, "*.html"))
			if kept := strings.Contains(all, ".html"); err != nil || kept != (len(drawn) == 1) {
				t.Errorf("drawn: %v %v", drawn, err)
			}
			for _, path := range drawn {
				if raw, err := os.ReadFile(path); err != nil || len(raw) < 1000 {
					t.Errorf("%s holds %d bytes: %v", path, len(raw), err)
				}
			}
		})
	}
}
