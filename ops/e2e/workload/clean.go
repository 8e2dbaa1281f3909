package workload

import (
	"errors"

	"bivouac.dev/bivouac/ops/e2e/testcluster"
)

// cleaning clears the root of a workspace as agents do, except for the client's own file. It
// deletes Bivouac's marker.
const cleaning = `cd "$(dirname "$OH_CONVERSATIONS_PATH")" && git init -q . && ` +
	`git clean -ffdxq -e /` + fileName + ` -e /project -e /conversations -e /bash_events && test ! ` +
	`-e .bivouac && echo cleaned`

// clean makes the agent of a RUNNING sandbox run git clean in its workspace. The sandbox keeps
// running under any leader. If it is placed anew before the marker was written again, its
// client accepts the workspace.
func (a *actor) clean(b *owned) error {
	if err := a.settled(b); err != nil {
		return err
	}
	return a.until("clean", func(c testcluster.Client) (bool, error) {
		sb, _, err := a.enter(c, b)
		if err != nil {
			return false, err
		}
		b.cleaned = true
		out, err := sb.Shell(cleaning)
		if err == nil && out != "cleaned" {
			err = errors.New("git clean: " + out)
		}
		return err == nil, err
	})
}
