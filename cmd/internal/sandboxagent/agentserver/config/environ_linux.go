package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// TakeEnvironment returns the program's environment and then clears the server's keys in it:
// /proc/PID/environ shows the memory in which the kernel put them, so it is overwritten. It removes
// the file in which Nomad brought them, and makes the process undumpable: users without
// CAP_SYS_PTRACE then read neither its memory nor its files below /proc, its own user included. A
// program calls it first of all. If it fails, some of that is not done; the environment is complete.
func TakeEnvironment() ([]string, error) {
	environ := os.Environ()
	errs := []error{clearBlock()}
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); isKeyVariable(name) {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	if dir := os.Getenv("NOMAD_SECRETS_DIR"); dir != "" {
		// It is Nomad's client that reads it, before the task starts.
		err := os.Remove(filepath.Join(dir, "session.env"))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			errs = append(errs, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		errs = append(errs, fmt.Errorf("making the process undumpable: %w", err))
	}
	return environ, errors.Join(errs...)
}

// clearBlock overwrites the keys in the memory of the process that has its first environment.
func clearBlock() error {
	block, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		return fmt.Errorf("clearing the environment: %w", err)
	}
	start, err := blockAddress()
	if err != nil {
		return fmt.Errorf("clearing the environment: %w", err)
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("clearing the environment: %w", err)
	}
	defer mem.Close()
	at := int64(0)
	for _, entry := range bytes.SplitAfter(block, []byte{0}) {
		name, _, _ := bytes.Cut(entry, []byte("="))
		if isKeyVariable(string(name)) {
			if _, err := mem.WriteAt(make([]byte, len(entry)), start+at); err != nil {
				return fmt.Errorf("clearing the environment: %w", err)
			}
		}
		at += int64(len(entry))
	}
	return nil
}

// envStart is the place of env_start among the fields of /proc/PID/stat after the program's name.
const envStart = 47

// blockAddress returns where the environment begins in the process's memory.
func blockAddress() (int64, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	// The name is in brackets, and may have blanks and brackets in it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= envStart {
		return 0, errors.New("/proc/self/stat has no env_start")
	}
	at, err := strconv.ParseInt(string(fields[envStart]), 10, 64)
	if err == nil && at == 0 {
		err = errors.New("the kernel does not say where it is")
	}
	return at, err
}
