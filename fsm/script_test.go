package fsm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// commandTypes is every command type.
func commandTypes() []CommandType { return slices.Sorted(maps.Keys(commandTable)) }

// TestScripts runs the scripts in testdata/commands, one per command. A
// directive is a command type with its body as JSON (by default by no user):
//
//	sandbox.pause user=ada
//	{"id":"sb1"}
//
// Arguments: user, id and fingerprint fill the envelope, after=1h lets time
// pass first, quiet prints only errors. "<sha:x>" stands for the SHA-256 of x.
// The answer is "ok" or the error, and then every row that changed:
//
//   - a new row    - a row that went    ~ the fields that changed
//
// Other directives: restart (replaces the store by its own snapshot), suspend
// (a restore that suspends the API keys), and those of (*script).show. Run with
// -rewrite to record, and commit only what you understand.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/commands", func(t *testing.T, path string) {
		s := &script{fixture: newFixture(t), hashes: map[string]string{}}
		datadriven.RunTest(t, path, s.run)
	})
}

// TestEveryCommandHasAScript holds scripts and command types together.
func TestEveryCommandHasAScript(t *testing.T) {
	for _, c := range commandTypes() {
		name := strings.ReplaceAll(string(c), ".", "_") + ".txt"
		b, err := os.ReadFile(filepath.Join("testdata/commands", name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Contains(b, []byte("\n"+string(c))) {
			t.Errorf("%s never runs %s", name, c)
		}
	}
}

// script is the state of one script.
type script struct {
	*fixture
	// hashes names the hashes seen, to print them back.
	hashes map[string]string
}

var shaPattern = regexp.MustCompile(`<sha:([^>]*)>`)

// run executes one directive.
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	if d.Cmd == "restart" {
		before := s.store.Checksum()
		s.store = restored(t, s.store)
		return fmt.Sprintf("checksum equal: %v\n", s.store.Checksum() == before)
	}
	if d.Cmd == "suspend" {
		s.index++
		done, err := s.store.Succeed(Succession{ID: "act", At: s.now, Kind: FindingRestored, Index: s.index, SuspendKeys: true})
		return fmt.Sprintf("%d keys suspended (%v)\n", done.Suspended, err)
	}
	body, err := newBody(CommandType(d.Cmd))
	if err != nil {
		return s.show(d)
	}
	input := shaPattern.ReplaceAllStringFunc(d.Input, func(m string) string {
		h := sha(shaPattern.FindStringSubmatch(m)[1])
		s.hashes[h] = m
		return h
	})
	dec := json.NewDecoder(strings.NewReader(input))
	dec.DisallowUnknownFields()
	if err := dec.Decode(body); err != nil {
		d.Fatalf(t, "body: %v", err)
	}
	if arg(d, "after") != "" {
		after, err := time.ParseDuration(arg(d, "after"))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.now = s.now.Add(after)
	}
	cmd := s.command(arg(d, "user"), body)
	if id := arg(d, "id"); id != "" {
		cmd.ID = id
	}
	cmd.Fingerprint = arg(d, "fingerprint")
	return s.answer(cmd, d.HasArg("quiet"))
}

// answer applies a command and describes what it did.
func (s *script) answer(cmd Command, quiet bool) string {
	before := dump(s.store)
	was := s.store.View().Changed()
	r, err := s.apply(cmd)
	var out strings.Builder
	switch {
	case err != nil:
		fmt.Fprintf(&out, "%s: %v\n", CodeOf(err), err)
	case quiet:
		return "ok\n"
	default:
		out.WriteString("ok" + describeResult(r))
		select {
		case <-was:
			out.WriteString(", wakes the scheduler")
		default:
		}
		out.WriteByte('\n')
	}
	if r.Replayed {
		fmt.Fprintf(&out, "(the answer of index %d again)\n", r.Index)
	}
	after := dump(s.store)
	for _, name := range slices.Sorted(maps.Keys(union(before, after))) {
		s.difference(&out, name, before[name], after[name])
	}
	return out.String()
}

// describeResult names the object of a result.
func describeResult(r Result) string {
	switch {
	case r.Sandbox != nil:
		return " sandbox " + r.Sandbox.ID
	case r.StartTask != nil:
		return " start task " + r.StartTask.ID
	case r.User != nil:
		return " user " + r.User.ID
	case r.Conversation != nil:
		return " conversation " + r.Conversation.ID
	case r.APIKey != nil:
		return fmt.Sprintf(" API key %d", r.APIKey.ID)
	}
	return ""
}

// difference prints what became of one row.
func (s *script) difference(out *strings.Builder, name string, before, after json.RawMessage) {
	b, a := flatten(before), flatten(after)
	switch {
	case before == nil:
		fmt.Fprintf(out, "+ %s:%s\n", name, s.fields(a))
	case after == nil:
		fmt.Fprintf(out, "- %s\n", name)
	case !bytes.Equal(before, after):
		fmt.Fprintf(out, "~ %s:", name)
		for _, k := range slices.Sorted(maps.Keys(union(b, a))) {
			if b[k] != a[k] {
				fmt.Fprintf(out, " %s=%s (was %s)", k, s.named(a[k]), s.named(b[k]))
			}
		}
		out.WriteByte('\n')
	}
}

// fields prints the fields of a new row that say something.
func (s *script) fields(m map[string]string) string {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] != "false" {
			fmt.Fprintf(&out, " %s=%s", k, s.named(m[k]))
		}
	}
	return out.String()
}

// named prints a value, hashes by the name the script gave them.
func (s *script) named(v string) string {
	if v == "" {
		return "none"
	}
	if name := s.hashes[strings.Trim(v, `"`)]; name != "" {
		return name
	}
	return v
}

// flatten gives the members of a row that are not empty, by dotted path.
func flatten(raw json.RawMessage) map[string]string {
	out := map[string]string{}
	var v any
	if raw != nil && json.Unmarshal(raw, &v) == nil {
		flattenInto(out, "", v)
	}
	return out
}

func flattenInto(out map[string]string, path string, v any) {
	if m, ok := v.(map[string]any); ok {
		for k, e := range m {
			flattenInto(out, strings.TrimPrefix(path+"."+k, "."), e)
		}
		return
	}
	raw, _ := json.Marshal(v)
	switch string(raw) {
	case "null", `""`, "[]":
	default:
		out[path] = string(raw)
	}
}

// union gives the keys of both maps.
func union[V any](a, b map[string]V) map[string]bool {
	out := map[string]bool{}
	for k := range a {
		out[k] = true
	}
	for k := range b {
		out[k] = true
	}
	return out
}

// arg gives the value of an argument, "" when it is not given.
func arg(d *datadriven.TestData, key string) string {
	if a, ok := d.Arg(key); ok && len(a.Vals) == 1 {
		return a.Vals[0]
	}
	return ""
}

// show answers the directives that only look.
func (s *script) show(d *datadriven.TestData) string {
	v, user, id := s.store.View(), arg(d, "user"), arg(d, "sandbox")
	switch d.Cmd {
	case "state": // the sandbox as its user is shown it
		sb := v.Sandbox(user, id)
		if sb == nil {
			return "none\n"
		}
		return string(sb.State()) + "\n"
	case "expiry": // what its policy will do
		sb := v.SandboxAny(id)
		at, action, reason, ok := v.Expiry(sb)
		if !ok {
			return "never\n"
		}
		return fmt.Sprintf("%s %s at %s\n", reason, action, at.Format(time.TimeOnly))
	case "pool": // the members, and the one a user can claim
		var ids []string
		for _, m := range v.PoolMembers(arg(d, "spec")) {
			ids = append(ids, m.ID)
		}
		claimable := "none"
		if m := v.ClaimableMember("", user, nil); m != nil {
			claimable = m.ID
		}
		return fmt.Sprintf("%v claimable: %s\n", ids, claimable)
	case "specs": // in order
		var ids []string
		for _, sp := range v.Specs() {
			ids = append(ids, fmt.Sprintf("%d:%s", sp.Position, sp.ID))
		}
		return strings.Join(ids, " ") + "\n"
	case "contains": // whether a birth lies in the history
		b, ok := ParseBirth(arg(d, "birth"))
		return fmt.Sprintf("%v\n", ok && v.Contains(b))
	case "mark": // what a mark means that was found
		var found *Mark
		if d.Input != "" {
			found = &Mark{}
			if err := json.Unmarshal([]byte(d.Input), found); err != nil {
				d.Fatalf(s.t, "%v", err)
			}
		}
		return string(v.JudgeMark(arg(d, "store"), found)) + "\n"
	case "history":
		h := v.History()
		return fmt.Sprintf("id=%s epoch=%d parents=%v birth=%s\n", h.ID, h.Epoch, h.Parents, v.Birth())
	case "cluster": // what belongs to no table
		return fmt.Sprintf("id=%s version=%d term=%d by %s\n", v.ClusterID(), v.ProtocolVersion(), v.meta.Term, v.meta.TermNode)
	}
	d.Fatalf(s.t, "unknown directive %s", d.Cmd)
	return ""
}
