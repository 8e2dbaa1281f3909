package local

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// The servers' ports are in [portMin, portMax), below Nomad's dynamic ports and the kernel's
// ephemeral ones, so that a restarted server finds its port free.
const (
	portMin = 10000
	portMax = 20000
)

// FreePort returns a free TCP port of the loopback interface that no other process has claimed
// with it. The claim lasts as long as this process.
func FreePort() (int, error) {
	for range 200 {
		port := portMin + rand.IntN(portMax-portMin)
		if !portFree(port) {
			continue
		}
		mine, err := claimPort(port)
		if mine || err != nil {
			return port, err
		}
	}
	return 0, fmt.Errorf("finding a free port: 200 ports between %d and %d are all in use", portMin, portMax)
}

// claimPort locks the port's file for the life of this process. It returns false if another
// process has the lock. The descriptor stays open on purpose.
func claimPort(port int) (bool, error) {
	dir, err := claimsDir()
	if err != nil {
		return false, err
	}
	path := filepath.Join(dir, "port-"+strconv.Itoa(port))
	fd, err := syscall.Open(path, syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return false, fmt.Errorf("claiming port %d: %w", port, err)
	}
	if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false, syscall.Close(fd)
	}
	return true, nil
}

// claimsDir is the folder of this user's lock files.
func claimsDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("bivouac-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("claiming ports: %w", err)
	}
	return dir, nil
}

// freePorts returns n of them.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// preferPort returns the wanted port if it is free, else another.
func preferPort(want int) (int, error) {
	if portFree(want) {
		mine, err := claimPort(want)
		if mine || err != nil {
			return want, err
		}
	}
	return FreePort()
}

// portRange is the range of dynamic ports that one Nomad agent assigns to its tasks. Agents
// don't know each other, so each range is claimed with a file lock, which lasts while this
// process or the agent has the file open.
type portRange struct {
	min, max int // both included
	lock     *os.File
}

const (
	dynamicMin    = 20000
	dynamicMax    = 32000
	dynamicPieces = 40
)

func claimPortRange() (portRange, error) {
	dir, err := claimsDir()
	if err != nil {
		return portRange{}, err
	}
	const size = (dynamicMax - dynamicMin) / dynamicPieces
	first := rand.IntN(dynamicPieces)
	for i := range dynamicPieces {
		piece := (first + i) % dynamicPieces
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(piece)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return portRange{}, fmt.Errorf("claiming dynamic ports: %w", err)
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			f.Close()
			continue
		}
		lo := dynamicMin + piece*size
		return portRange{min: lo, max: lo + size - 1, lock: f}, nil
	}
	return portRange{}, fmt.Errorf("claiming dynamic ports: all %d ranges are taken by other Nomad agents", dynamicPieces)
}

func (r portRange) release() {
	if r.lock != nil {
		r.lock.Close()
	}
}
