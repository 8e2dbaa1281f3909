package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler"
)

// errNotFound: Nomad has no such object.
var errNotFound = errors.New("not found")

// Nomad's error texts where its status codes don't suffice: it returns 500 for a lost race as
// well as for a failed server.
const (
	textEnforceIndex   = "Enforcing job modify index"
	textEnforceVersion = "enforcing version"
	textRevertCurrent  = "can't revert to current version"
	textInUse          = "in use by allocations"
	textNoSuchVolume   = "no such volume"
	textNoPath         = "No path to node"
	textNameTaken      = "volume name already exists on this node"
	textDenied         = "Permission denied"
)

// mapError converts an error of the client library into this program's errors: errNotFound, fsm's
// CodeConflict and CodeScheduler, a Failure, or a Denied without the missing permission, which
// call adds.
func mapError(op string, err error) error {
	if err == nil {
		return nil
	}
	var lost api.ErrCASConflict
	if errors.As(err, &lost) {
		return fsm.Errorf(fsm.CodeConflict, "nomad: %s: it was written since it was read", op)
	}
	var resp api.UnexpectedResponseError
	if !errors.As(err, &resp) || !resp.HasStatusCode() {
		if errors.Is(err, context.Canceled) {
			return fmt.Errorf("nomad: %s: %w", op, err)
		}
		return fsm.Errorf(fsm.CodeScheduler, "Nomad can't be reached: %s: %v", op, err)
	}
	body := strings.TrimSpace(resp.Body())
	switch code := resp.StatusCode(); {
	case strings.Contains(body, textEnforceIndex), strings.Contains(body, textEnforceVersion):
		return fsm.Errorf(fsm.CodeConflict, "nomad: %s: %s", op, body)
	case code == http.StatusNotFound, strings.Contains(body, textNoSuchVolume):
		return fmt.Errorf("nomad: %s: %w", op, errNotFound)
	case code == http.StatusForbidden:
		return &scheduler.Denied{Detail: "Nomad: " + op + ": " + body}
	case code == http.StatusBadRequest, invalidJob(body):
		return &scheduler.Failure{Reason: fsm.ReasonSpec, Detail: fmt.Sprintf("Nomad refused the job: %s: %s", op, body)}
	default:
		return fsm.Errorf(fsm.CodeScheduler, "Nomad failed: %s: status %d: %s", op, code, body)
	}
}

// invalidJob recognises the list of errors at the end of Nomad's validation of a job.
func invalidJob(body string) bool {
	return strings.Contains(body, "error occurred:") || strings.Contains(body, "errors occurred:")
}

// says reports whether the error's text contains text.
func says(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

// The calls that need other permissions than those for a namespace's jobs and volumes.
const (
	opReadMark    = "read mark"
	opWriteMark   = "write mark"
	opListClients = "list clients"
	opReadClient  = "read client"
	opReadLog     = "read log"
)

// missing returns the permission that a call without it needs, as Nomad's policies name it.
func (c Config) missing(op string) (path, capability string) {
	path = "the namespace " + c.namespace()
	switch op {
	case opReadMark:
		return fmt.Sprintf("the variable %s in %s", c.Variable, path), "read"
	case opWriteMark:
		return fmt.Sprintf("the variable %s in %s", c.Variable, path), "write"
	case opListClients, opReadClient:
		return "nodes", "read"
	case "create volume":
		return path, "host-volume-create"
	case "delete volume":
		return path, "host-volume-delete"
	case "list volumes", "read volume":
		return path, "host-volume-read"
	case "list jobs", "list spare jobs":
		return path, "list-jobs"
	case opExec:
		return path, "alloc-exec"
	case "register job":
		return path + `, or host_volume "sandbox-*" has no policy "write"`, "submit-job"
	case opRunCarrier, "raise job", "stop job", "revert job", "deregister job", "tag version", "untag version":
		return path, "submit-job"
	case opReadLog:
		return path, "read-logs"
	}
	return path, "read-job"
}
