// Package acptest is an agent for tests that speaks the Agent Client Protocol, with the faults of
// real ones. A test's binary becomes the agent when [Env] is in its environment:
//
//	func TestMain(m *testing.M) { acptest.Main(); os.Exit(m.Run()) }
//
// What the agent does in a turn is the first word of the prompt's last text (turns.go), what it
// does at its start is the value of Env. It writes every line it reads to the file [LogEnv] names.
package acptest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Env makes a test's binary the agent. Its value is a list of the faults at its start.
	Env = "BIVOUAC_ACPTEST"
	// LogEnv is the file that the agent writes what it reads to.
	LogEnv = "BIVOUAC_ACPTEST_LOG"
	// Sessions is the directory below HOME that has a file for each session.
	Sessions = ".acptest"
)

// The faults at an agent's start.
const (
	Fine      = "fine"       // none
	Mute      = "mute"       // it never answers
	Exits     = "exits"      // it ends at once, with words on stderr
	OldSpeech = "old_speech" // another version of the protocol
	NoLogin   = "no_login"   // session/new asks for a login
	NoLoad    = "no_load"    // session/load fails
	Noisy     = "noisy"      // lines that are no messages, also within a turn
	Flood     = "flood"      // 100 MB on stderr
	Renames   = "renames"    // a session that was loaded makes other calls
	DiesOnce  = "dies_once"  // the first agent that loads a session ends at its first prompt
)

// agent is the running agent.
type agent struct {
	faults []string
	log    *os.File
	// title is that of its calls.
	title string
	// dies ends it at a prompt.
	dies bool

	mu       sync.Mutex
	asked    int
	answers  map[string]chan json.RawMessage
	canceled map[string]chan struct{} // by session, closed by session/cancel
}

// message is a line of the protocol.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *failure        `json:"error,omitempty"`
}

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Main runs the agent and exits if Env is set, else it returns.
func Main() {
	value, is := os.LookupEnv(Env)
	if !is {
		return
	}
	a := &agent{
		faults:   strings.Split(value, ","),
		title:    "write done.txt",
		answers:  map[string]chan json.RawMessage{},
		canceled: map[string]chan struct{}{},
	}
	if path := os.Getenv(LogEnv); path != "" {
		a.log, _ = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) // a test sees that it is empty
	}
	os.Exit(a.run())
}

func (a *agent) has(fault string) bool { return slices.Contains(a.faults, fault) }

func (a *agent) run() int {
	if a.has(Exits) {
		fmt.Fprintln(os.Stderr, "no such option: --acp")
		return 7
	}
	if a.has(Flood) {
		line := []byte(strings.Repeat("warning: this is noise ", 2000) + "\n")
		for n := 0; n < 100<<20; n += len(line) {
			_, _ = os.Stderr.Write(line) // a closed stderr is nobody's fault
		}
	}
	a.noise()
	r := bufio.NewReader(os.Stdin)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return 0
		}
		if a.log != nil {
			_, _ = a.log.Write(line)
		}
		var m message
		if json.Unmarshal(line, &m) == nil && !a.has(Mute) {
			a.take(m, line)
		}
	}
}

// noise writes lines that are no messages.
func (a *agent) noise() {
	if a.has(Noisy) {
		a.mu.Lock()
		defer a.mu.Unlock()
		fmt.Print("npm warn deprecated\n{\"half\": " +
			"\n\n[1,2]\n\x00\xff\xfe\n{\"jsonrpc\":\"2.0\"}\n{\"jsonrpc\":\"2.0\",\"method\":\"x/unknown\",\"params\":3}\n")
	}
}

// take takes one message of the client.
func (a *agent) take(m message, line []byte) {
	var p struct {
		SessionID string `json:"sessionId"`
	}
	_ = json.Unmarshal(m.Params, &p) // a message without a session has none
	switch m.Method {
	case "":
		a.answered(m, line)
	case "initialize":
		version := 1
		if a.has(OldSpeech) {
			version = 0
		}
		a.reply(m, map[string]any{"protocolVersion": version, "agentInfo": map[string]string{
			"name":    "acptest",
			"version": "1",
		},
			"agentCapabilities": map[string]any{"loadSession": true}})
	case "session/new":
		if a.has(NoLogin) {
			a.refuse(m, -32000, "Authentication required")
			return
		}
		id := "session-" + strconv.FormatInt(time.Now().UnixNano(), 36)
		a.remember(id)
		a.reply(m, map[string]any{"sessionId": id})
	case "session/load":
		if a.has(NoLoad) || !a.knows(p.SessionID) {
			a.refuse(m, -32002, "Resource not found")
			return
		}
		if a.has(Renames) {
			a.title = "write another.txt"
		}
		_, err := os.Stat("died")
		a.dies = a.has(DiesOnce) && err != nil
		a.reply(m, map[string]any{})
	case "session/prompt":
		if a.dies {
			_ = os.WriteFile("died", nil, 0o600)
			os.Exit(1)
		}
		a.mu.Lock()
		stop := make(chan struct{})
		a.canceled[p.SessionID] = stop
		a.mu.Unlock()
		go a.prompt(m, p.SessionID, stop)
	case "session/cancel":
		a.mu.Lock()
		defer a.mu.Unlock()
		if stop := a.canceled[p.SessionID]; stop != nil {
			close(stop)
			delete(a.canceled, p.SessionID)
		}
	default:
		a.refuse(m, -32601, "Method not found")
	}
}

// answered passes on the client's answer to a request of the agent.
func (a *agent) answered(m message, line []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.answers[string(m.ID)]; c != nil {
		c <- slices.Clone(line)
	}
}

func (a *agent) reply(m message, result any) { a.send(message{ID: m.ID, Result: result}) }

func (a *agent) refuse(m message, code int, text string) {
	a.send(message{ID: m.ID, Error: &failure{code, text}})
}

// send writes messages at once, a line each.
func (a *agent) send(list ...message) {
	var lines []byte
	for _, m := range list {
		m.Version = "2.0"
		b, err := json.Marshal(m)
		if err != nil {
			panic(err) // its own types encode
		}
		lines = append(append(lines, b...), '\n')
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, _ = os.Stdout.Write(lines) // the client is gone: so is the test
}

func sessionFile(id string) string {
	return filepath.Join(os.Getenv("HOME"), Sessions, filepath.Base(id))
}

func (a *agent) remember(id string) {
	_ = os.MkdirAll(filepath.Dir(sessionFile(id)), 0o700) // the next line fails with it
	_ = os.WriteFile(sessionFile(id), nil, 0o600)         // a session that is not there can't be loaded
}

func (a *agent) knows(id string) bool {
	_, err := os.Stat(sessionFile(id))
	return err == nil
}
