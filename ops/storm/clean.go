package storm

import (
	"errors"
	"net/http"

	"bivouac.dev/bivouac/ops/fleet"
)

// cleaning clears the root of a workspace as agents do, but for what a client
// knows of: Bivouac's marker goes.
const cleaning = `cd "$(dirname "$OH_CONVERSATIONS_PATH")" && git init -q . && ` +
	`git clean -ffdxq -e /` + fileName + ` -e /project -e /conversations -e /bash_events && test ! -e .bivouac && echo cleaned`

// clean has the agent of a RUNNING sandbox run git clean in its workspace. The
// sandbox runs on, whoever leads; where it is placed anew before the marker was
// written again its client accepts the workspace.
func (a *actor) clean(b *box) error {
	if err := a.settled(b); err != nil {
		return err
	}
	return a.until("clean", func(c fleet.Client) (bool, error) {
		sb, _, err := a.enter(c, b)
		if err != nil {
			return false, err
		}
		b.cleaned = true
		answer, err := sb.Inside().Try(http.MethodPost, "/api/bash/execute_bash_command", map[string]any{"command": cleaning})
		if err != nil {
			return false, err
		}
		var out struct {
			Stdout *string `json:"stdout"`
		}
		if err := answer.Decode(&out); err != nil {
			return false, err
		}
		if out.Stdout == nil || *out.Stdout != "cleaned\n" {
			return false, errors.New("git clean: " + string(answer.Body))
		}
		return true, nil
	})
}
