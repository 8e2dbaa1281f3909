package main

import (
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bivouac.dev/bivouac/fsm"
)

// differ changes a setting of any type.
func differ(t *testing.T, name string, value reflect.Value) {
	t.Helper()
	switch is := value.Interface().(type) {
	case fsm.Policy:
		value.Set(reflect.ValueOf(fsm.Policy{IdleTimeout: is.IdleTimeout + time.Hour}))
	case fsm.Limits:
		value.Set(reflect.ValueOf(fsm.Limits{Running: is.Running + 1}))
	case []fsm.Price:
		value.Set(reflect.ValueOf(append(slices.Clone(is), fsm.Price{Model: "*", Input: 1})))
	case []fsm.ModelProfile:
		value.Set(reflect.ValueOf(append(slices.Clone(is), fsm.ModelProfile{Model: "*"})))
	case []fsm.ModelServer:
		value.Set(reflect.ValueOf(append(slices.Clone(is), fsm.ModelServer{Host: "llm.example.org", Slots: 1})))
	case []string:
		value.Set(reflect.ValueOf(append(slices.Clone(is), "192.0.2.7")))
	default:
		switch value.Kind() {
		case reflect.String:
			if name == "log.level" {
				value.SetString("error")
			} else {
				value.SetString(value.String() + "x")
			}
		case reflect.Bool:
			value.SetBool(!value.Bool())
		case reflect.Int, reflect.Int64:
			value.SetInt(value.Int() + 1)
		case reflect.Uint64:
			value.SetUint(value.Uint() + 1)
		case reflect.Float64:
			value.SetFloat(value.Float() + 1)
		default:
			t.Fatalf("%s: a setting of type %s: the test must know how to change it", name, value.Type())
		}
	}
}

// Every setting of the file, changed by itself: SIGHUP applies it to the running node or names it.
func TestReload_EverySettingIsAppliedOrNamed(t *testing.T) {
	reference, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for name := range new(Config).settings() {
		count++
		last := name[strings.LastIndex(name, ".")+1:]
		if strings.HasSuffix(name, ".") || last == "" || !strings.Contains(string(reference), last) {
			t.Errorf("%q is not a name of doc.go: the field needs a tag such as `hcl:\"body_size\"`", name)
		}
		running, next := defaultConfig(), defaultConfig()
		for other, value := range next.settings() {
			if other == name {
				differ(t, name, value)
			}
		}
		before, err := running.live()
		if err != nil {
			t.Fatal(err)
		}
		changes := running.adopt(&next)
		after, err := running.live()
		if err != nil {
			t.Fatal(err)
		}
		applied := !reflect.DeepEqual(before, after)
		named := slices.Concat(changes.restart, changes.cluster)
		switch {
		case len(changes.applied)+len(named) != 1:
			t.Errorf("%s is named %d times: %+v", name, len(changes.applied)+len(named), changes)
		case len(named) == 1 && (named[0] != name || applied):
			t.Errorf("%s: %v is named, and the node changes: %t", name, named, applied)
		case len(named) == 0 && (!applied || !strings.HasPrefix(changes.applied[0], name+" = ")):
			t.Errorf("%s is said to be applied (%v), and the node changes: %t", name, changes.applied, applied)
		}
		// What needs a restart is named until then; what is applied is so once.
		if again := running.adopt(&next); len(again.applied) != 0 || !slices.Equal(again.restart, changes.restart) {
			t.Errorf("%s, read again: %+v", name, again)
		}
	}
	if count < 80 {
		t.Errorf("%d settings: some are not visited", count)
	}
}

// rewrite changes the node's file.
func (n *serverNode) rewrite(t *testing.T, change func(string) string) {
	t.Helper()
	has, err := os.ReadFile(n.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.config, []byte(change(string(has))), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A real process: what changes at SIGHUP, what is named, and what a file with mistakes does.
func TestBinary_Hangup_AppliesAndNames(t *testing.T) {
	t.Parallel()
	s := newServers(t,
		serverOptions{
			nomad: "http://" + freeAddress(t),
			vault: "http://" + freeAddress(t),
			more:  "limits {\n  rate_per_second = 0\n}\n",
		})
	n := s.nodes[0]
	n.start()
	// refused counts the answers of 429 among ten requests.
	refused := func() (count int) {
		for range 10 {
			a, err := n.try(http.MethodGet, "/api/v1/no-such-path", nil)
			if err != nil {
				t.Fatal(err)
			}
			if a.status == http.StatusTooManyRequests {
				count++
			}
		}
		return count
	}
	eventually(t, "the node serves", func() error {
		n.process.mustRun(t)
		_, err := n.try(http.MethodGet, "/alive", nil)
		return err
	})
	if got := refused(); got != 0 {
		t.Fatalf("%d requests are refused without a limit", got)
	}
	moved := filepath.Join(n.dir, "elsewhere")
	n.rewrite(t, func(text string) string {
		text = strings.Replace(text, "rate_per_second = 0",
			"rate_per_second = 0.001\n  body_size = 2048\n  user {\n    running_sandboxes = 7\n  }", 1)
		return text + "backup {\n  dir = \"" + moved + "\"\n}\n"
	})
	n.process.signal(t, syscall.SIGHUP)
	for _, line := range []string{
		"configuration read again", "limits.body_size = 2048 (was 6291456), limits.rate_per_second = 0.001 (was 0)",
		"changed settings need a restart of this node", "backup.dir, backup.interval, backup.retain",
		"changed settings are the cluster's and are ignored", "limits.user",
	} {
		n.process.awaitLog(t, line)
	}
	// The first two of an address pass, the second of them late.
	if got := refused(); got != 8 {
		t.Errorf("%d of ten requests are refused, want 8", got)
	}
	n.rewrite(t, func(text string) string { return strings.Replace(text, "body_size = 2048", "body_size = 1", 1) })
	n.process.signal(t, syscall.SIGHUP)
	n.process.awaitLog(t, "the old one stays in force")
	n.process.awaitLog(t, "node.hcl:")
	if got := refused(); got != 10 {
		t.Errorf("%d of ten requests are refused after a file with a mistake, want all", got)
	}
}
