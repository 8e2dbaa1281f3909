package agentserver

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
)

// serverVariable marks every process that a server starts, and what they start, with the server's
// folder and process: "<hash of the folder>.<pid>.<start time>". A process that clears its
// environment is not found.
const serverVariable = "BIVOUAC_AGENT_SERVER"

// marked adds the mark of this server to the environment of commands and agents.
func marked(env map[string]string, dir string) map[string]string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	pid := os.Getpid()
	env[serverVariable] = folderMark(dir) + strconv.Itoa(pid) + "." + startTime(pid)
	return env
}

// endOrphans kills the processes that a killed server of this folder left, and returns their number.
// They would go on beside this server's sessions. as is the user that commands run as: no other user
// may read their environment. nil is the server's own user.
func endOrphans(dir string, as *syscall.Credential) int {
	mark, n := folderMark(dir), 0
	for range 20 { // one that is killed may have forked just then
		var pids []int
		err := credential.Do(as, func() error { pids = orphans(mark); return nil })
		if err != nil || len(pids) == 0 {
			return n
		}
		for _, pid := range pids {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				n++
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return n
}

// orphans lists the processes with the mark whose server has ended.
func orphans(mark string) []int {
	var list []int
	entry := []byte(serverVariable + "=" + mark)
	environs, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
	for _, path := range environs {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended, or is another user's
		}
		for _, one := range bytes.Split(b, []byte{0}) {
			rest, is := bytes.CutPrefix(one, entry)
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if !is || err != nil || pid == os.Getpid() || startTime(pid) == "" {
				continue
			}
			server, started, _ := strings.Cut(string(rest), ".")
			if n, err := strconv.Atoi(server); err == nil && startTime(n) != started {
				list = append(list, pid)
			}
		}
	}
	return list
}

// folderMark is the part of the mark that the servers of a folder have in common.
func folderMark(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8]) + "."
}

// startTime is when a process began, in the kernel's ticks; empty if it has ended. With the pid it
// names a process for good.
func startTime(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The name stands in parentheses and may have any characters in it.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return ""
	}
	return string(fields[19])
}
