//go:build !linux

package process

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

var errLinuxOnly = errors.New("local processes as sandboxes need Linux")

type spawner struct{}

func newSpawner() *spawner { return &spawner{} }

func (*spawner) start(*exec.Cmd) error { return errLinuxOnly }

func (*spawner) close() {}

func bootID() (string, error) { return "", errLinuxOnly }

func startTicks(int) (uint64, error) { return 0, errLinuxOnly }

func signalGroup(int, syscall.Signal) {}

func sweep(...string) error { return nil }

func killLeftovers([]runMark, string) error { return nil }

func lockFile(string) (*os.File, error) { return nil, errLinuxOnly }
func unlockFile(*os.File) error         { return errLinuxOnly }
