package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"bivouac.dev/bivouac/deploy/local"
)

// process is one node's program. It can be started again after a kill.
type process struct {
	local.Command
	*local.Process
}

// start starts the program.
func (p *process) start() (err error) {
	p.Process, err = p.Command.Start()
	return err
}

// usage returns the process's CPU time so far and its resident memory.
func (p *process) usage() (cpu time.Duration, resident int64) {
	if !p.Alive() {
		return 0, 0
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		return 0, 0
	}
	// The program's name, in brackets, may contain spaces.
	fields := strings.Fields(string(raw)[strings.LastIndexByte(string(raw), ')')+1:])
	if len(fields) < 22 {
		return 0, 0
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		return n
	}
	return time.Duration(number(11)+number(12)) * time.Second / ticksPerSecond, number(21) * int64(os.Getpagesize())
}

// until polls every 20 ms until there is no error, at most for limit.
func until(ctx context.Context, limit time.Duration, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, errors.Join(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
