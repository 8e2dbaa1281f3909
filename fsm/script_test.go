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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// commandTypes is every command type.
func commandTypes() []CommandType { return slices.Sorted(maps.Keys(commandTable)) }

// TestScripts runs the scripts in testdata/commands, one per command. A directive is a command type
// with its body as JSON (by default without a user):
//
//	sandbox.pause user=ada
//	{"id":"sb1"}
//
// The arguments user, id and fingerprint fill the envelope, after=1h advances the clock first,
// quiet prints only errors. "<sha:x>" stands for the SHA-256 of x, "<4096 é>" for 4096 times é. The
// output is "ok" or the error, followed by every row that changed:
//
//   - a new row    - a removed row    ~ the fields that changed
//
// Other directives: restart (replaces the store by its own snapshot), suspend (a restore that
// suspends the API keys), and those of (*script).show. Run with -rewrite to record, and review
// every change before you commit it.
func TestScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/commands", func(t *testing.T, path string) {
		s := &script{fixture: newFixture(t), names: map[string]string{}}
		datadriven.RunTest(t, path, s.run)
	})
}

// TestEveryCommandHasAScript compares scripts and command types.
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
	// names holds the short forms of hashes and long texts, to print them.
	names map[string]string
}

var shortPattern = regexp.MustCompile(`<(?:sha:([^>]*)|([0-9]+) ([^>]))>`)

// expand returns what a short form of a script's input stands for.
func (s *script) expand(short string) string {
	parts := shortPattern.FindStringSubmatch(short)
	long := sha(parts[1])
	if n, err := strconv.Atoi(parts[2]); err == nil {
		long = strings.Repeat(parts[3], n)
	}
	s.names[long] = short
	return long
}

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
		done, err := s.store.Succeed(Succession{
			ID:          "act",
			At:          s.now,
			Kind:        FindingRestored,
			Index:       s.index,
			SuspendKeys: true,
		})
		return fmt.Sprintf("%d keys suspended (%v)\n", done.Suspended, err)
	}
	body, err := newBody(CommandType(d.Cmd))
	if err != nil {
		return s.show(d)
	}
	dec := json.NewDecoder(strings.NewReader(shortPattern.ReplaceAllStringFunc(d.Input, s.expand)))
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

// difference prints the change of one row.
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

// fields prints the non-empty fields of a new row.
func (s *script) fields(m map[string]string) string {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if m[k] != "false" {
			fmt.Fprintf(&out, " %s=%s", k, s.named(m[k]))
		}
	}
	return out.String()
}

// named prints a value, and a hash or a long text by the script's short form.
func (s *script) named(v string) string {
	if v == "" {
		return "none"
	}
	if name := s.names[strings.Trim(v, `"`)]; name != "" {
		return name
	}
	return v
}

// flatten returns the members of a row that are not empty, by dotted path.
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

// union returns the keys of both maps.
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

// arg returns the value of an argument, "" when it is missing.
func arg(d *datadriven.TestData, key string) string {
	if a, ok := d.Arg(key); ok && len(a.Vals) == 1 {
		return a.Vals[0]
	}
	return ""
}

// show runs the read-only directives.
func (s *script) show(d *datadriven.TestData) string {
	v, user, id := s.store.View(), arg(d, "user"), arg(d, "sandbox")
	switch d.Cmd {
	case "state": // the sandbox as its user sees it
		sb := v.Sandbox(user, id)
		if sb == nil {
			return "none\n"
		}
		return string(sb.State()) + "\n"
	case "expiry": // the next action of its policy
		sb := v.SandboxAny(id)
		at, action, reason, ok := v.Expiry(sb)
		if !ok {
			return "never\n"
		}
		return fmt.Sprintf("%s %s at %s\n", reason, action, at.Format(time.TimeOnly))
	case "pool": // the members, and the one that a user can claim
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
	case "mark": // the verdict on a mark
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
	case "cluster": // the state outside the tables
		return fmt.Sprintf("id=%s version=%d term=%d by %s\n", v.ClusterID(), v.ProtocolVersion(), v.meta.Term,
			v.meta.TermNode)
	}
	d.Fatalf(s.t, "unknown directive %s", d.Cmd)
	return ""
}
