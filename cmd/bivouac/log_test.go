package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// logKinds reads the table of ops/LOGS.md: the kind of each member.
func logKinds(t testing.TB) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../ops/LOGS.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{"time": "time", "level": "text", "msg": "text"}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(page), -1) {
		kinds[m[1]] = m[2]
	}
	return kinds
}

// logMember is one member of a JSON line; a line may have two of the same name.
type logMember struct {
	name  string
	value any
}

// membersOf reads a JSON line without losing a member that is there twice.
func membersOf(line []byte) (members []logMember, err error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("no object: %v, %w", t, err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		m := logMember{name: name.(string)}
		if err := d.Decode(&m.value); err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	return members, nil
}

// numbered is the name of a member that was there already.
var numbered = regexp.MustCompile(`_[2-9]$`)

// pair is a key and a value inside a message.
var pair = regexp.MustCompile(`(^|[\s,;])[A-Za-z_-]+=\S`)

// schemaFaults lists how a line differs from ops/LOGS.md.
func schemaFaults(kinds map[string]string, line []byte) (faults []string) {
	members, err := membersOf(line)
	if err != nil {
		return []string{err.Error()}
	}
	seen, raft := map[string]bool{}, false
	for _, m := range members {
		raft = raft || m.name == "msg" && strings.HasPrefix(fmt.Sprint(m.value), "raft: ")
	}
	for _, m := range members {
		if seen[m.name] || numbered.MatchString(m.name) {
			faults = append(faults, fmt.Sprintf("%q is there twice", m.name))
		}
		seen[m.name] = true
		if m.name == "msg" && pair.MatchString(fmt.Sprint(m.value)) {
			faults = append(faults, fmt.Sprintf("the message %q has pairs", m.value))
		}
		switch kind, known := kinds[m.name]; {
		case !known && !raft:
			faults = append(faults, fmt.Sprintf("%q is not in the table", m.name))
		case known && !isOfKind(kind, m.value):
			faults = append(faults, fmt.Sprintf("%q is no %s: %v", m.name, kind, m.value))
		}
	}
	for _, name := range []string{"time", "level", "msg", "node"} {
		// In a development cluster the processes of sandboxes belong to no node.
		if !seen[name] && (name != "node" || raft) {
			faults = append(faults, fmt.Sprintf("%q is missing", name))
		}
	}
	return faults
}

func isOfKind(kind string, value any) bool {
	text, isText := value.(string)
	switch kind {
	case "text":
		return isText
	case "number":
		_, is := value.(json.Number)
		return is
	case "boolean":
		_, is := value.(bool)
		return is
	case "duration":
		_, err := time.ParseDuration(text)
		return isText && err == nil
	case "time":
		_, err := time.Parse(time.RFC3339Nano, text)
		return isText && err == nil
	case "list":
		_, is := value.([]any)
		return is
	}
	return false
}

// TestLog_EveryLineHasTheSchema runs three nodes with JSON at debug, works with them, kills the
// leader, and reads every line.
func TestLog_EveryLineHasTheSchema(t *testing.T) {
	c, err := openDev(devOptions{dataDir: t.TempDir(), nodes: 3, logLevel: "debug", logFormat: "json"})
	if err != nil {
		t.Fatal(err)
	}
	r := runningDev(t, c)
	for _, a := range r.all {
		a.do(t, http.StatusOK, "POST", "/api/settings", map[string]any{"language": "en"})
		a.do(t, http.StatusNotFound, "GET", "/api/v1/none", nil)
	}
	id := r.all[0].startSandbox(t)
	r.all[0].awaitSandbox(t, id, "RUNNING")
	r.all[1].do(t, http.StatusOK, "POST", "/api/v1/sandboxes/"+id+"/pause", nil)
	leader := r.leader(t)
	r.kill(t, leader)
	r.leader(t)
	r.revive(t, leader)
	r.all[leader].do(t, http.StatusOK, "POST", "/api/settings", map[string]any{"language": "de"})
	logs := filepath.Join(r.layout.logs(), "bivouac.log")
	r.end(t)

	f, err := os.Open(logs)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	kinds, lines, told := logKinds(t), 0, map[string]bool{}
	for s := bufio.NewScanner(f); s.Scan(); lines++ {
		for _, fault := range schemaFaults(kinds, s.Bytes()) {
			if !told[fault] && len(told) < 30 {
				told[fault] = true
				t.Errorf("%s\n\t%s", fault, s.Bytes())
			}
		}
	}
	t.Logf("%d lines", lines)
	if lines < 50 {
		t.Errorf("only %d lines", lines)
	}
}

// TestLog_AKeyIsThereOnce: a second one is numbered, so that neither is lost.
func TestLog_AKeyIsThereOnce(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log := newLogger(&out, format, slog.LevelInfo).With("node", "a").With("node", "b", "count", 1)
		log.Info("done", "node", "c", "time", "d", "count", 2)
		want := `"node":"a","node_2":"b","count":1,"node_3":"c","time_2":"d","count_2":2`
		if format == "text" {
			want = "node=a node_2=b count=1 node_3=c time_2=d count_2=2"
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: no %s in %s", format, want, out.String())
		}
	}
}

// TestLog_ARequestHasOneIDOnEveryNode: a write through a follower is a line of the leader at DEBUG,
// with the request's id and the node that took it.
func TestLog_ARequestHasOneIDOnEveryNode(t *testing.T) {
	c, err := openDev(devOptions{dataDir: t.TempDir(), nodes: 3, logLevel: "debug", logFormat: "json"})
	if err != nil {
		t.Fatal(err)
	}
	r := runningDev(t, c)
	eventually(t, "the leader has a line of a follower's request", func() error {
		leader := r.leader(t)
		taker := (leader + 1) % 3
		id := fmt.Sprintf("one-id.%d", time.Now().UnixNano())
		r.all[taker].with("X-Request-Id", id).do(t, http.StatusOK, "POST", "/api/settings", map[string]any{"language": id})
		text, err := os.ReadFile(filepath.Join(r.layout.logs(), "bivouac.log"))
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			var l struct {
				Node, Msg, Request, Peer, Type string
				Index                          uint64
			}
			if json.Unmarshal(line, &l) == nil && l.Request == id && l.Node == r.nodes[leader].name {
				if l.Peer != r.nodes[taker].name || l.Type != "settings.put" || l.Index == 0 {
					t.Errorf("%s", line)
				}
				return nil
			}
		}
		return fmt.Errorf("no line of %s, the leader, with %s", r.nodes[leader].name, id)
	})
}
