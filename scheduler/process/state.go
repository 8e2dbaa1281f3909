package process

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/scheduler/durable"
)

const (
	stateFile    = "state.json"
	workspaceDir = "workspace"
	logsDir      = "logs"
	removedMark  = ".removed-"
	lockName     = ".lock"
	// keptVersions is how many job versions can be reverted to, as in Nomad.
	keptVersions = 6
)

// state is what must be known of a job after a restart of the program. It holds no secret.
type state struct {
	SandboxID   string `json:"sandbox_id"`
	ClusterID   string `json:"cluster_id"`
	ModifyIndex uint64 `json:"modify_index"`
	// Version is the newest. Every start and every stop makes one.
	Version uint64 `json:"version"`
	Stopped bool   `json:"stopped"`
	// Workspace: it was made, so it must exist from now on. WorkspaceID names it, "" in a state
	// written before such names.
	Workspace   bool   `json:"workspace"`
	WorkspaceID string `json:"workspace_id,omitempty"`
	// Birth is the sandbox's. Purged: its job was removed and its workspace kept.
	Birth    string    `json:"birth,omitempty"`
	Purged   bool      `json:"purged,omitempty"`
	Versions []version `json:"versions"`
	// Rotations is Job.Rotations of the newest start.
	Rotations uint64 `json:"rotations,omitempty"`
	// Run is the newest run. It is written before the process starts and kept after its end, so
	// that leftovers are found.
	Run *runMark `json:"run,omitempty"`
}

// job reports whether there is a job. index is its modify index, 0 without one.
func (s *state) job() bool { return s.SandboxID != "" && !s.Purged }

func (s *state) index() uint64 {
	if !s.job() {
		return 0
	}
	return s.ModifyIndex
}

// version is a template that the job ran.
type version struct {
	Version  uint64       `json:"version"`
	Template fsm.Template `json:"template"`
}

// runMark identifies a run's processes. Each has Mark in its environment. The task itself has
// process id PID; Started (clock ticks since boot) and BootID tell a reused id apart.
type runMark struct {
	Mark    string `json:"mark"`
	PID     int    `json:"pid,omitempty"`
	Started uint64 `json:"started,omitempty"`
	BootID  string `json:"boot_id"`
}

// remember adds the version and drops the oldest.
func (s *state) remember(v version) {
	s.Versions = append(s.Versions, v)
	if n := len(s.Versions); n > keptVersions {
		s.Versions = slices.Delete(s.Versions, 0, n-keptVersions)
	}
}

// template returns the template of a version.
func (s *state) template(v uint64) (fsm.Template, bool) {
	for _, k := range s.Versions {
		if k.Version == v {
			return k.Template, true
		}
	}
	return fsm.Template{}, false
}

func readState(dir string) (state, error) {
	var s state
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("reading %s: %w", stateFile, err)
	}
	return s, nil
}

// writeState replaces the file atomically.
func writeState(dir string, s state) error {
	if err := writeJSON(dir, stateFile, s); err != nil {
		return fmt.Errorf("writing the job's state: %w", err)
	}
	return nil
}

// writeJSON replaces a file atomically and syncs it.
func writeJSON(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, name), b, 0o600)
}
