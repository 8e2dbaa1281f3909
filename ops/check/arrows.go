package check

import (
	"fmt"
	"slices"
	"strings"
)

// mayImport is the table of DESIGN.md, "Who imports whom": the folders of ours that each
// top-level folder may import. A missing folder may import none.
var mayImport = map[string][]string{
	"fsm":       {},
	"secrets":   {},
	"cluster":   {"fsm"},
	"scheduler": {"fsm"},
	"httpapi":   {"fsm", "cluster"},
	"cmd":       {"fsm", "secrets", "cluster", "scheduler", "httpapi"},
	"deploy":    {},
	"ops":       {"deploy", "cluster", "fsm"}, // drills use the peer port
}

// mayImportToo lists single packages that a folder may import beside those of mayImport.
var mayImportToo = map[string][]string{
	"cmd": {"ops/runbooks"}, // the program ships them
	// Drills call the API, and script a model; ops/page writes what a node's page reads.
	"ops":     {"httpapi/client", "httpapi/page", "scheduler/agent/modeltest"},
	"cluster": {"httpapi/requestid"}, // a request keeps its id on every node
	// agents of specs and vendors of models, as data; what a sandbox's shell prints
	"httpapi": {"scheduler/agent/bash", "scheduler/agent/preset"},
	"scheduler": {
		"httpapi/decode",
		"httpapi/requestid",
		"httpapi/llmtoken",
	}, // validation of the agent server; tokens of start tasks
}

// narrow lists packages with a stricter rule than their folder: they may import the listed
// packages and the standard library only.
var narrow = map[string][]string{
	"cluster/raftfix":   {"github.com/hashicorp/raft"},
	"ops/runbooks":      {},
	"httpapi/decode":    {"github.com/go-json-experiment/json"}, // it runs in every sandbox, which has it
	"httpapi/client":    {},
	"httpapi/places":    {},
	"httpapi/eventcut":  {}, // it runs in every sandbox
	"httpapi/requestid": {},
	"scheduler/durable": {"github.com/google/renameio/v2"},
	"scheduler/archive": {"golang.org/x/sys/unix"}, // it runs beside workspaces
	"cluster/peernet": {
		"github.com/hashicorp/raft", "github.com/hashicorp/go-hclog", "github.com/cenkalti/backoff/v5",
	},
	"cluster/raftstore": {
		"github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb/v2", "github.com/hashicorp/raft-wal",
		"github.com/hashicorp/go-hclog", "go.etcd.io/bbolt", "golang.org/x/sys/unix",
	},
	"httpapi/page":           {},
	"httpapi/publicaddr":     {},
	"scheduler/agent/preset": {}, // the API and the command line read it
}

// ours lists packages that may import fewer of our packages than their folder: the listed ones.
var ours = map[string][]string{
	"cluster/eventstore":  {"fsm"},
	"cluster/formation":   {"cluster/peernet", "cluster/raftstore"},
	"cluster/membership":  {"cluster/peernet"},
	"cluster/records":     {"cluster/membership", "cluster/peernet", "cluster/raftstore"},
	"cluster/replication": {},
	"cluster/senders": {
		"fsm", "cluster/membership", "cluster/peernet", "cluster/raftfix", "cluster/raftmetrics", "cluster/raftstore",
	},
	"cluster/raftfsm":     {"fsm"},
	"cluster/raftmetrics": {"fsm", "cluster/raftstore"},
	"cluster/recovery": {"fsm", "cluster", "cluster/eventstore", "cluster/peernet", "cluster/raftfsm",
		"cluster/raftstore"},

	"httpapi/apikey":   {"fsm"},
	"httpapi/response": {"fsm", "httpapi/decode", "httpapi/requestid"},
	"httpapi/limits":   {"httpapi/places", "httpapi/response"},
	"httpapi/wire":     {"fsm", "cluster"},
	"httpapi/operators": {
		"fsm",
		"fsm/snapshotfile",
		"cluster",
		"cluster/backup",
		"cluster/raftstore",
		"httpapi/apikey",
		"httpapi/decode",
		"httpapi/limits",
		"httpapi/llm",
		"httpapi/request",
		"httpapi/response",
		"httpapi/wire",
		"scheduler/agent/preset",
	},
	"httpapi/request": {
		"fsm",
		"cluster",
		"httpapi/decode",
		"httpapi/limits",
		"httpapi/proxy",
		"httpapi/response",
		"httpapi/wire",
	},
	"httpapi/git":    {"fsm", "httpapi/decode", "httpapi/publicaddr", "httpapi/response"},
	"httpapi/legacy": {"fsm", "httpapi/decode", "httpapi/git", "httpapi/response"},
	"httpapi/proxy":  {"fsm", "cluster", "httpapi/apikey", "httpapi/decode", "httpapi/places", "httpapi/response"},
	"httpapi/llm": {
		"fsm",
		"cluster",
		"httpapi/apikey",
		"httpapi/llmtoken",
		"httpapi/proxy",
		"httpapi/publicaddr",
		"httpapi/response",
		"scheduler/agent/preset",
	},
	"httpapi/llmtoken": {"fsm"},
	"scheduler": {
		"fsm",
		"httpapi/decode",
		"scheduler/access",
		"scheduler/agent",
		"scheduler/archive",
		"scheduler/fault",
		"scheduler/slots",
	},
	"scheduler/starttask": {
		"fsm",
		"httpapi/decode",
		"httpapi/llmtoken",
		"httpapi/requestid",
		"scheduler/access",
		"scheduler/agent",
		"scheduler/agent/preset",
		"scheduler/fault",
		"scheduler/slots",
	},
	"scheduler/nomad":   {"fsm", "httpapi/decode", "scheduler", "scheduler/fault"},
	"scheduler/process": {"fsm", "httpapi/decode", "scheduler", "scheduler/durable"},
	"scheduler/access":  {"fsm"},
	"scheduler/durable": {},
	"scheduler/fault":   {},
	"scheduler/slots":   {},
	"scheduler/agent":   {"httpapi/decode", "httpapi/requestid", "scheduler/agent/bash"},
	"cmd/internal/sandboxagent/agentserver": {
		"cmd/internal/sandboxagent/acp",
		"cmd/internal/sandboxagent/agentserver/bash",
		"cmd/internal/sandboxagent/agentserver/config",
		"cmd/internal/sandboxagent/agentserver/conversation",
		"cmd/internal/sandboxagent/agentserver/conversationapi",
		"cmd/internal/sandboxagent/agentserver/files",
		"cmd/internal/sandboxagent/agentserver/git",
		"cmd/internal/sandboxagent/agentserver/socket",
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/credential",
		"cmd/internal/sandboxagent/engine",
		"cmd/internal/sandboxagent/hooks",
		"cmd/internal/sandboxagent/native",
		"cmd/internal/sandboxagent/skills",
		"httpapi/decode",
		"httpapi/requestid",
		"scheduler/agent",
		"scheduler/archive",
	},
	"cmd/internal/sandboxagent/agentserver/config": {
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/engine",
		"httpapi/decode",
		"scheduler/agent",
	},
	"cmd/internal/sandboxagent/agentserver/wire": {
		"httpapi/decode",
		"httpapi/requestid",
	},
	"cmd/internal/sandboxagent/agentserver/relay": {
		"cmd/internal/sandboxagent/agentserver/config",
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/engine",
		"httpapi/decode",
		"scheduler/agent",
		"scheduler/agent/preset",
	},
	"cmd/internal/sandboxagent/agentserver/relay/relaytest": {
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/engine",
		"scheduler/agent",
	},
	"cmd/internal/sandboxagent/agentserver/socket": {
		"scheduler/agent",
	},
	"cmd/internal/sandboxagent/agentserver/bash": {
		"cmd/internal/sandboxagent/agentserver/config",
		"cmd/internal/sandboxagent/agentserver/socket",
		"cmd/internal/sandboxagent/agentserver/wire",
		"httpapi/decode",
		"scheduler/agent",
		"scheduler/durable",
	},
	"cmd/internal/sandboxagent/agentserver/git": {
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/credential",
		"httpapi/decode",
	},
	"cmd/internal/sandboxagent/agentserver/files": {
		"cmd/internal/sandboxagent/agentserver/config",
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/credential",
		"httpapi/decode",
		"scheduler/agent",
	},
	"cmd/internal/sandboxagent/agentserver/webhook": {
		"cmd/internal/sandboxagent/agentserver/config",
		"scheduler/agent",
	},
	"cmd/internal/sandboxagent/agentserver/conversation": {
		"cmd/internal/sandboxagent/agentserver/config",
		"cmd/internal/sandboxagent/agentserver/relay",
		"cmd/internal/sandboxagent/agentserver/webhook",
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/engine",
		"cmd/internal/sandboxagent/event",
		"httpapi/decode",
		"httpapi/eventcut",
		"scheduler/agent",
		"scheduler/durable",
	},
	"cmd/internal/sandboxagent/agentserver/conversationapi": {
		"cmd/internal/sandboxagent/agentserver/config",
		"cmd/internal/sandboxagent/agentserver/conversation",
		"cmd/internal/sandboxagent/agentserver/relay",
		"cmd/internal/sandboxagent/agentserver/socket",
		"cmd/internal/sandboxagent/agentserver/wire",
		"cmd/internal/sandboxagent/credential",
		"cmd/internal/sandboxagent/engine",
		"cmd/internal/sandboxagent/event",
		"cmd/internal/sandboxagent/hooks",
		"httpapi/decode",
		"scheduler/agent",
	},
	"cmd/internal/sandboxagent/credential": {},
	"cmd/internal/sandboxagent/hooks":      {},
	"cmd/internal/sandboxagent/event":      {},
	"cmd/internal/sandboxagent/engine":     {"cmd/internal/sandboxagent/event"},
	"cmd/internal/sandboxagent/tools":      {"cmd/internal/sandboxagent/credential", "cmd/internal/sandboxagent/event"},
	"cmd/internal/sandboxagent/mcp":        {"cmd/internal/sandboxagent/event", "cmd/internal/sandboxagent/tools"},
	"cmd/internal/sandboxagent/skills":     {"cmd/internal/sandboxagent/event", "cmd/internal/sandboxagent/tools"},
	"cmd/internal/sandboxagent/native": {
		"cmd/internal/sandboxagent/credential",
		"cmd/internal/sandboxagent/engine",
		"cmd/internal/sandboxagent/event",
		"cmd/internal/sandboxagent/hooks",
		"cmd/internal/sandboxagent/mcp",
		"scheduler/agent/preset",
		"cmd/internal/sandboxagent/skills",
		"cmd/internal/sandboxagent/tools",
	},
	"cmd/internal/sandboxagent/acp": {
		"cmd/internal/sandboxagent/credential",
		"cmd/internal/sandboxagent/engine",
		"cmd/internal/sandboxagent/event",
		"scheduler/agent/preset",
	},
	"scheduler/agent/bash":              {},
	"scheduler/agent/preset":            {},
	"scheduler/agent/modeltest":         {},
	"cmd/internal/sandboxagent/acptest": {},
	"scheduler/copies":                  {"fsm", "scheduler/archive"},
}

// Arrows reports imports against the direction of DESIGN.md. Tests may also use deploy/local
// (the real servers) and the scripted model. Tests of cmd and ops may import anything.
func Arrows(files []*File) []string {
	var found []string
	for _, f := range files {
		allowed, known := mayImport[f.Top()]
		if !known {
			found = append(found, fmt.Sprintf("%s: %q is not one of the top-level folders", f.Path, f.Top()))
			continue
		}
		for _, spec := range f.AST.Imports {
			p := strings.Trim(spec.Path.Value, `"`)
			why := ""
			if rest, ours := strings.CutPrefix(p, Module+"/"); ours {
				why = forbiddenOurs(f, rest, allowed)
			}
			if only, is := narrow[f.Package()]; is && why == "" && !f.IsTest() && !within(p, only) {
				why = fmt.Sprintf("%s imports nothing but %s", f.Package(),
					strings.Join(append(slices.Clone(only), "the standard library"), ", "))
			}
			if why != "" {
				found = append(found, f.at(spec.Pos())+": "+why)
			}
		}
	}
	return found
}

// within reports whether an import is listed or from the standard library.
func within(imported string, only []string) bool {
	host, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(host, ".") || slices.ContainsFunc(only, func(allowed string) bool {
		return imported == allowed || strings.HasPrefix(imported, allowed+"/")
	})
}

func forbiddenOurs(f *File, rest string, allowed []string) string {
	top, _, _ := strings.Cut(rest, "/")
	listed, narrower := ours[f.Package()]
	switch {
	case narrower && !f.IsTest() && rest != f.Package() && !slices.Contains(listed, rest):
		return fmt.Sprintf("%s must not import %s", f.Package(), rest)
	case top == f.Top(), slices.Contains(allowed, top), slices.Contains(mayImportToo[f.Top()], rest):
		return ""
	case f.IsTest() && (top == "deploy" || rest == "scheduler/agent/modeltest" || f.Top() == "cmd" || f.Top() == "ops"):
		return ""
	}
	return fmt.Sprintf("%s must not import %s", f.Top(), top)
}
