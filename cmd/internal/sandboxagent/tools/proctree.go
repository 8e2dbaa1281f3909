package tools

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
)

// killTree kills the process leader, its session, its descendants, and every process with the
// cookie in its environment: a process that left the session still has it, unless it cleared its
// environment. killTree reads environments as the user as.
func killTree(leader int, cookie string, as *syscall.Credential) {
	for range 20 {
		pids := one(leader)
		// If the thread can't become the user, pids stays the leader alone.
		_ = credential.Do(as, func() error { pids = tree(leader, cookie); return nil })
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(pids) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// one returns a list with the leader, nil for 0 and -1: kill(2) takes 0 for the caller's process
// group and -1 for all processes.
func one(leader int) []int {
	if leader <= 0 {
		return nil
	}
	return []int{leader}
}

// tree lists the processes of killTree that have not ended.
func tree(leader int, cookie string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return one(leader)
	}
	mark := []byte(cookieName + "=" + cookie)
	parents := map[int]int{}
	found := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parent, session, ok := stat(pid)
		if !ok {
			continue
		}
		parents[pid] = parent
		found[pid] = pid == leader || session == leader || marked(pid, mark)
	}
	var out []int
	for pid := range parents {
		// The chain of parents is finite: a process that is read while it changes is found next time.
		for p, n := pid, 0; p > 1 && n < len(parents); p, n = parents[p], n+1 {
			if found[p] {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// stat returns a process's parent and session, false if it has ended.
func stat(pid int) (parent, session int, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, false
	}
	// The name stands in parentheses and may have any characters in it.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 4 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, 0, false
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	session, _ = strconv.Atoi(string(fields[3]))
	return parent, session, true
}

func marked(pid int, mark []byte) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for _, variable := range bytes.Split(b, []byte{0}) {
		if bytes.Equal(variable, mark) {
			return true
		}
	}
	return false
}
