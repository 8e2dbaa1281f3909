package native

import (
	"encoding/json"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/engine"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/event"
	"bivouac.dev/bivouac/cmd/internal/sandboxagent/tools"
)

const riskUnknown = "UNKNOWN"

// risks orders the risks that can be compared.
var risks = map[string]int{"LOW": 1, "MEDIUM": 2, "HIGH": 3} //nolint:gochecknoglobals // read-only

// analyzes reports whether the model's own assessment of a call's risk counts.
func (e *Engine) analyzes() bool {
	var analyzer struct {
		Kind string `json:"kind"`
	}
	raw := e.conv.State(engine.KeySecurityAnalyzer)
	return len(raw) > 0 && json.Unmarshal(raw, &analyzer) == nil && analyzer.Kind != ""
}

// asks reports whether the user confirms these calls of one answer. One that needs it holds back
// all of them.
func (e *Engine) asks(actions []*event.Action) bool {
	policy := engine.Policy{Kind: "NeverConfirm"}
	if raw := e.conv.State(engine.KeyConfirmationPolicy); len(raw) > 0 && json.Unmarshal(raw, &policy) != nil {
		policy = engine.Policy{Kind: "AlwaysConfirm"} // a policy that can't be read must not permit
	}
	if len(actions) == 1 && (actions[0].ToolName == tools.FinishName || actions[0].ToolName == tools.ThinkName) {
		return false
	}
	for _, a := range actions {
		if confirms(policy, a.SecurityRisk) {
			return true
		}
	}
	return false
}

// confirms reports whether the policy asks about a risk.
func confirms(p engine.Policy, risk string) bool {
	switch p.Kind {
	case "", "NeverConfirm":
		return false
	case "ConfirmRisky":
		rank, known := risks[risk]
		if !known {
			return p.ConfirmUnknown == nil || *p.ConfirmUnknown
		}
		threshold, known := risks[p.Threshold]
		if !known {
			threshold = risks["HIGH"]
		}
		return rank >= threshold
	}
	return true
}
