package lincheck

import (
	"cmp"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkPatience bounds the search for one object's order. A correct history does not reach it:
// a few hundred ops take milliseconds.
const checkPatience = 40 * time.Second

// Verdict is the result of Judge.
type Verdict struct {
	// Objects is the number of checked objects, Ops the number of their ops.
	Objects, Ops int
	// Wrong lists what can't be explained, or was not decided in time.
	Wrong []string
	// Backwards is the largest decrease of a node's index from one process to the next. After a
	// restart a node may show older state until a leader contacts it.
	Backwards uint64
	// StaleReads counts stale reads. Behind counts those that showed older state than some
	// client had seen before.
	StaleReads, Behind int
}

// Judge checks a history. It writes the evidence of its findings to dir.
func Judge(ops []Op, dir string) Verdict {
	var v Verdict
	v.order(ops, dir)
	v.indexes(ops)
	v.lives(ops)
	v.values(ops)
	v.listings(ops)
	v.shown(ops)
	return v
}

func (v *Verdict) wrong(format string, args ...any) {
	v.Wrong = append(v.Wrong, fmt.Sprintf(format, args...))
}

type objectKey struct {
	object Object
	key    string
}

// order checks linearizability, object by object, or group by group if there are listings.
func (v *Verdict) order(ops []Op, dir string) {
	byKey := map[objectKey][]Op{}
	for _, op := range ops {
		if op.takesPart() {
			k := objectKey{op.Object, cmp.Or(op.Of, op.Key)}
			byKey[k] = append(byKey[k], op)
		}
	}
	var mu sync.Mutex
	var checking sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for k, list := range byKey {
		v.Objects++
		model := modelFor(k.object, list)
		list = prune(list)
		v.Ops += len(list)
		checking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if finding := checkOrder(k, model, list, dir); finding != "" {
				mu.Lock()
				defer mu.Unlock()
				v.wrong("%s", finding)
			}
		})
	}
	checking.Wait()
	slices.Sort(v.Wrong)
}

// takesPart excludes ops without effect and response.
func (op Op) takesPart() bool {
	return !op.Stale && op.Outcome != Nothing && (!op.reads() || op.Outcome == Done)
}

// checkOrder returns "" if the ops have an order, else a description.
func checkOrder(k objectKey, model porcupine.Model, ops []Op, dir string) string {
	list := make([]porcupine.Operation, len(ops))
	for i, op := range ops {
		list[i] = porcupine.Operation{
			ClientId: op.Client, Input: input{op}, Call: int64(op.Call),
			Output: output{known: op.Outcome == Done, value: op.Out}, Return: int64(op.Return),
		}
	}
	result := porcupine.CheckOperationsTimeout(model, list, checkPatience)
	if result == porcupine.Ok {
		return ""
	}
	what := "has no order that explains it"
	if result == porcupine.Unknown {
		what = fmt.Sprintf("was not decided within %s", checkPatience)
	}
	name := filepath.Join(dir, strings.ReplaceAll(fmt.Sprintf("%s-%s", k.object, k.key), "/", "_"))
	_, info := porcupine.CheckOperationsVerbose(model, list, checkPatience)
	if err := porcupine.VisualizePath(model, info, name+".html"); err != nil {
		what += fmt.Sprintf(" (not drawn: %v)", err)
	}
	if err := Save(name+".json", ops); err != nil {
		what += fmt.Sprintf(" (not saved: %v)", err)
	}
	return fmt.Sprintf("%s %s: the history of %d requests %s; drawn in %s.html", k.object, k.key, len(ops), what, name)
}

// writeAnswerPatience: a write is acknowledged even if the responding node could not apply it
// within its five seconds.
const writeAnswerPatience = 4 * time.Second

// indexes checks real time against the log. A linearizable read shows at least the highest
// index of any earlier response, of any object and any node. A stale read shows at least what
// its node has shown before in the same process.
func (v *Verdict) indexes(ops []Op) {
	type mark struct {
		index uint64
		op    Op
	}
	type life struct {
		node string
		life uint64
	}
	byReturn := slices.Clone(ops)
	byReturn = slices.DeleteFunc(byReturn, func(op Op) bool { return op.Outcome != Done || op.Index == 0 })
	slices.SortStableFunc(byReturn, func(a, b Op) int { return int(a.Return - b.Return) })
	everywhere, here := mark{}, map[life]mark{}
	next := 0
	for _, read := range ops { // by Call
		for ; next < len(byReturn) && byReturn[next].Return < read.Call; next++ {
			op := byReturn[next]
			if !op.Stale && op.Index > everywhere.index {
				everywhere = mark{op.Index, op}
			}
			l := life{op.Node, op.Life}
			late := !op.reads() && op.Return-op.Call > writeAnswerPatience
			if op.Life > 0 && !late && op.Index > here[l].index {
				here[l] = mark{op.Index, op}
			}
		}
		if !read.reads() || read.Outcome != Done {
			continue
		}
		if read.Stale {
			v.StaleReads++
			if read.Index < everywhere.index {
				v.Behind++
			}
		} else if read.Index < everywhere.index {
			v.wrong("%s read %s of index %d on %s at %s, after %s had told of index %d (%s %s) at %s",
				read.Object, read.Key, read.Index, read.Node, read.Call, everywhere.op.Node, everywhere.index,
				everywhere.op.Do, everywhere.op.Key, everywhere.op.Return)
		}
		if was := here[life{read.Node, read.Life}]; read.Life > 0 && read.Index < was.index {
			v.wrong("%s went backwards in one life: index %d at %s (stale %t), after it had shown %d at %s",
				read.Node, read.Index, read.Call, read.Stale, was.index, was.op.Return)
		}
	}
}

// lives measures how far nodes went back at restarts.
func (v *Verdict) lives(ops []Op) {
	type shown struct {
		life uint64
		// top is the highest index of this process and the ones before.
		top uint64
	}
	nodes := map[string]shown{}
	for _, op := range ops {
		if !op.reads() || op.Outcome != Done || op.Life == 0 {
			continue
		}
		s := nodes[op.Node]
		if op.Life > s.life && op.Index < s.top {
			v.Backwards = max(v.Backwards, s.top-op.Index)
		}
		nodes[op.Node] = shown{max(s.life, op.Life), max(s.top, op.Index)}
	}
}

// values checks the settings that reads show against the log. A read never shows a value that
// was never written or was rejected, and at index i it shows exactly the last write up to i.
func (v *Verdict) values(ops []Op) {
	byKey := map[string][]Op{}
	for _, op := range ops {
		if op.Object == Settings {
			byKey[op.Key] = append(byKey[op.Key], op)
		}
	}
	for key, list := range byKey {
		v.settings(key, list)
	}
}

func (v *Verdict) settings(key string, ops []Op) {
	wrote := map[string]Op{}
	var log []Op // acknowledged writes by index
	for _, op := range ops {
		if op.Do != Put {
			continue
		}
		wrote[op.In.B] = op
		if op.Outcome == Done {
			log = append(log, op)
		}
	}
	slices.SortFunc(log, func(a, b Op) int { return int(int64(a.Index) - int64(b.Index)) })
	for _, read := range ops {
		if read.Do != Read || read.Outcome != Done {
			continue
		}
		at, _ := slices.BinarySearchFunc(log, read.Index+1,
			func(op Op, i uint64) int { return int(int64(op.Index) - int64(i)) })
		var last *Op // the last acknowledged write at or below the read's index
		if at > 0 {
			last = &log[at-1]
		}
		if !read.Out.There {
			if last != nil {
				v.wrong("settings %s: nothing at index %d on %s, and a write at index %d", key, read.Index, read.Node, last.Index)
			}
			continue
		}
		writer, known := wrote[read.Out.B]
		switch {
		case !known || writer.Call > read.Return:
			v.wrong("settings %s: %q at index %d on %s was never written", key, read.Out.B, read.Index, read.Node)
		case writer.Outcome == Nothing:
			v.wrong("settings %s: %q at index %d on %s was refused: %s", key, read.Out.B, read.Index, read.Node, writer.Error)
		case writer.Outcome == Done && (last == nil || writer.Index != last.Index):
			v.wrong("settings %s: at index %d %s shows the write of index %d, not the last one", key, read.Index, read.Node,
				writer.Index)
		case read.Out.C != writer.In.C:
			v.wrong("settings %s: at index %d %s shows %q of another write than %q", key, read.Index, read.Node, read.Out.C,
				read.Out.B)
		}
	}
}
