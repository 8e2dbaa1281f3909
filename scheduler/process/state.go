package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"bivouac.dev/bivouac/fsm"
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

// state is what must be known of a job when the program comes back. It holds
// no secret.
type state struct {
	SandboxID   string `json:"sandbox_id"`
	ClusterID   string `json:"cluster_id"`
	ModifyIndex uint64 `json:"modify_index"`
	// Version is the newest; every start and every stop makes one.
	Version uint64 `json:"version"`
	Stopped bool   `json:"stopped"`
	// Workspace: it was made, so from now on it has to be there. WorkspaceID
	// names it, "" for one older than such names.
	Workspace   bool   `json:"workspace"`
	WorkspaceID string `json:"workspace_id,omitempty"`
	// Birth is the sandbox's; Purged says that its job is gone and its workspace
	// was kept.
	Birth    string    `json:"birth,omitempty"`
	Purged   bool      `json:"purged,omitempty"`
	Versions []version `json:"versions"`
	// Run is the newest run, written before its process begins and kept after
	// its end: leftovers are found by it.
	Run *runMark `json:"run,omitempty"`
}

// job reports whether there is a job, and index is its modify index, 0 for none.
func (s *state) job() bool { return s.SandboxID != "" && !s.Purged }

func (s *state) index() uint64 {
	if !s.job() {
		return 0
	}
	return s.ModifyIndex
}

// version is a template the job ran.
type version struct {
	Version  uint64       `json:"version"`
	Template fsm.Template `json:"template"`
}

// runMark tells a run's processes from all others: each carries Mark in its
// environment, and the task itself has PID and, against numbers used again,
// Started (clock ticks since boot) in the boot BootID.
type runMark struct {
	Mark    string `json:"mark"`
	PID     int    `json:"pid,omitempty"`
	Started uint64 `json:"started,omitempty"`
	BootID  string `json:"boot_id"`
}

// remember adds the version and forgets the oldest.
func (s *state) remember(v version) {
	s.Versions = append(s.Versions, v)
	if n := len(s.Versions); n > keptVersions {
		s.Versions = slices.Delete(s.Versions, 0, n-keptVersions)
	}
}

// template finds the template of a version.
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

// writeState replaces the file, whole or not at all.
func writeState(dir string, s state) error {
	if err := writeJSON(dir, stateFile, s); err != nil {
		return fmt.Errorf("writing the job's state: %w", err)
	}
	return nil
}

// writeJSON replaces a file, whole or not at all, and has it on the disk.
func writeJSON(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
