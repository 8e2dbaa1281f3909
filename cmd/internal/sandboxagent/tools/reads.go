package tools

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/cmd/internal/sandboxagent/credential"
)

// waitKind is how a system call waits for input.
type waitKind int

const (
	waitRead   waitKind = iota + 1 // read(fd, …)
	waitPoll                       // poll(fds, n, …)
	waitSelect                     // select(n, fds, …)
	waitEpoll                      // epoll_wait(epfd, …)
)

// waits are the numbers of the system calls in which programs wait for a terminal's input.
func waits(number string) waitKind {
	table := map[string]map[string]waitKind{
		"amd64": {"0": waitRead, "7": waitPoll, "271": waitPoll, "23": waitSelect, "270": waitSelect, "232": waitEpoll,
			"281": waitEpoll, "441": waitEpoll},
		"arm64": {"63": waitRead, "73": waitPoll, "72": waitSelect, "22": waitEpoll, "441": waitEpoll},
	}
	return table[runtime.GOARCH][number]
}

// asks reports whether the program in front has read all input and waits for more. It is false where
// that can't be found out, as in a sandbox that hides /proc.
func (s *shell) asks() bool {
	if left, err := unix.IoctlGetInt(int(s.slave.Fd()), unix.TIOCINQ); err != nil || left > 0 {
		return false
	}
	group := s.job()
	if group == 0 {
		group = s.cmd.Process.Pid // a builtin, such as read
	}
	terminal, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(s.slave.Fd())))
	if err != nil {
		return false
	}
	found := false
	err = credential.Do(s.cmd.SysProcAttr.Credential, func() error {
		found = groupAsks(group, terminal)
		return nil
	})
	return err == nil && found
}

// groupAsks reports whether a process of a group waits for input of the terminal, and none works.
func groupAsks(group int, terminal string) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return false
	}
	found := false
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(fields) < 3 || string(fields[2]) != strconv.Itoa(group) {
			continue
		}
		if state := fields[0][0]; state == 'R' || state == 'D' {
			return false
		}
		found = found || processAsks(filepath.Dir(path), terminal)
	}
	return found
}

// processAsks reports whether a process, by its directory in /proc, waits for input of the terminal.
func processAsks(proc, terminal string) bool {
	b, err := os.ReadFile(proc + "/syscall")
	call := strings.Fields(string(b))
	if err != nil || len(call) < 4 {
		return false
	}
	arg := func(n int) uint64 {
		v, _ := strconv.ParseUint(strings.TrimPrefix(call[n+1], "0x"), 16, 64) // the kernel writes numbers
		return v
	}
	is := func(fd uint64) bool {
		target, err := os.Readlink(fmt.Sprintf("%s/fd/%d", proc, fd))
		return err == nil && (target == terminal || target == "/dev/tty")
	}
	switch waits(call[0]) {
	case waitRead:
		return is(arg(0))
	case waitPoll:
		list := memory(proc, arg(0), 8*min(arg(1), maxPolled))
		for ; len(list) >= 8; list = list[8:] {
			if binary.LittleEndian.Uint16(list[4:])&unix.POLLIN != 0 && is(uint64(binary.LittleEndian.Uint32(list))) {
				return true
			}
		}
	case waitSelect:
		set := memory(proc, arg(1), (min(arg(0), maxPolled)+7)/8)
		for fd := range uint64(len(set)) * 8 {
			if set[fd/8]&(1<<(fd%8)) != 0 && is(fd) {
				return true
			}
		}
	case waitEpoll:
		info, err := os.ReadFile(fmt.Sprintf("%s/fdinfo/%d", proc, arg(0)))
		return err == nil && slices.ContainsFunc(strings.Split(string(info), "\n"), func(line string) bool {
			words := strings.Fields(line)
			if len(words) < 4 || words[0] != "tfd:" {
				return false
			}
			fd, err := strconv.ParseUint(words[1], 10, 32)
			events, wrong := strconv.ParseUint(words[3], 16, 32)
			return err == nil && wrong == nil && events&unix.EPOLLIN != 0 && is(fd)
		})
	}
	return false
}

// maxPolled bounds the file descriptors that are looked at.
const maxPolled = 1024

// memory is a part of a process's memory, nil if it can't be read.
func memory(proc string, at, size uint64) []byte {
	f, err := os.Open(proc + "/mem")
	if err != nil || at == 0 {
		return nil
	}
	defer f.Close()
	b := make([]byte, size)
	if _, err := f.ReadAt(b, int64(at)); err != nil { //nolint:gosec // an address of a user's is below 1<<63
		return nil
	}
	return b
}
