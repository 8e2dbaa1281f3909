package fsm

import (
	"fmt"
	"time"

	"pgregory.net/rapid"
)

// genPageBody is genBody for what opens a sandbox.
func genPageBody(t *rapid.T, c CommandType) (string, Body) {
	user, id := genUser().Draw(t, "opening"), genSandbox().Draw(t, "sandbox")
	until := testEpoch.Add(time.Duration(rapid.IntRange(-1, 90).Draw(t, "minutes")) * time.Minute)
	port, share := oneOf(PortAgentServer, "VSCODE").Draw(t, "port"), oneOf("h1", "h2").Draw(t, "share")
	switch c {
	case SandboxShare:
		return user, &SandboxShareBody{ID: id, Port: port, Share: share, Until: until}
	case SandboxRotateKey:
		version := rapid.IntRange(1, 4).Draw(t, "version")
		return user, &SandboxRotateKeyBody{
			ID: id, KeyRef: SecretRef{Path: SandboxKeyPath(id), Version: version}, KeyHash: sha(fmt.Sprint(id, version)),
			Operator: rapid.Bool().Draw(t, "operator"),
		}
	case SandboxUnshare:
		return user, &SandboxUnshareBody{
			ID:       id,
			Port:     port,
			Share:    share,
			Operator: rapid.IntRange(0, 9).Draw(t, "operator") == 0,
		}
	default:
		return user, &SandboxRedeemBody{ID: id, Hash: sha(oneOf("a", "b").Draw(t, "code")), Until: until}
	}
}

// genMoveBody is genBody for copies and moves of workspaces.
func genMoveBody(t *rapid.T, c CommandType) Body {
	id, attempt := genSandbox().Draw(t, "sandbox"), rapid.Uint64Range(0, 2).Draw(t, "attempt")
	switch c {
	case SandboxCopied:
		return &SandboxCopiedBody{
			ID: id, Base: oneOf("", "1-a", "2-b").Draw(t, "base"),
			Copy: Copy{ID: oneOf("1-a", "2-b").Draw(t, "copy"), Sum: sha("manifest"), At: testEpoch, Files: 1, Bytes: 2},
		}
	case SandboxMove:
		return &SandboxMoveBody{ID: id, Attempt: attempt, From: "client-1", End: rapid.IntRange(0, 4).Draw(t, "end") == 0}
	default:
		return &SandboxMovedBody{
			ID:      id,
			Attempt: attempt,
			Home:    Home{Volume: "v2", Client: "client-2", Lost: rapid.Bool().Draw(t, "lost")},
			Left:    oneOf("", "v1").Draw(t, "left"),
		}
	}
}
