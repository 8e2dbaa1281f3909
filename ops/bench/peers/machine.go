package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// disturbed is how many cores other programs may use, including the kernel's own work for the
// disk, before a measurement is repeated.
const disturbed = 0.35

// spoiled is how many cores make the measurement invalid.
const spoiled = 1.4

// busy returns the CPU time of all programs since boot. It excludes interrupts, because
// loopback packets belong to no program.
func busy() time.Duration {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	fields := strings.Fields(line)
	if len(fields) < 4 {
		return 0
	}
	var ticks int64
	for _, f := range fields[1:4] { // user, nice, system
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// ticksPerSecond is USER_HZ, which is constant on Linux.
const ticksPerSecond = 100
