package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// disturbed is how many cores the rest of the machine may use, the kernel's own
// work for the disk included, before a measurement is made again.
const disturbed = 0.35

// spoiled is how many make it count for nothing.
const spoiled = 1.4

// busy is what all programs have used of all cores since the machine started,
// without what interrupts used: loopback packets are nobody's.
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

// ticksPerSecond is USER_HZ, which Linux has fixed.
const ticksPerSecond = 100
