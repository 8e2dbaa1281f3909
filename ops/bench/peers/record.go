package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/ops/bench/peers/load"
)

// record is one line of the results file: one measurement of one system.
type record struct {
	// Run is the start of the run: ratios are computed within one.
	Run string `json:"run"`
	Row string `json:"row"`
	// System is the measured system, At the node that gets the requests.
	System string `json:"system"`
	At     string `json:"at,omitempty"`
	Repeat int    `json:"repeat"`

	// Load is the result of a closed loop. NodesCPU is how many cores the system's processes
	// used meanwhile, Resident their memory at its end, in bytes.
	Load     *load.Result `json:"load,omitempty"`
	NodesCPU float64      `json:"nodes_cpu,omitempty"`
	Resident int64        `json:"resident,omitempty"`
	// Others is how many cores other programs used meanwhile.
	Others float64 `json:"others,omitempty"`

	// Millis is a measured time in milliseconds.
	Millis float64 `json:"millis,omitempty"`
	// Values are the results of other rows, by name.
	Values map[string]float64 `json:"values,omitempty"`

	// Machine is set in a run's first line.
	Machine *machine `json:"machine,omitempty"`
}

// machine describes the machine of a run.
type machine struct {
	CPUs   int    `json:"cpus"`
	Model  string `json:"model"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Commit string `json:"commit"`
	// Protocol is the newest protocol version that the program knows, 0 in a record that has none.
	Protocol int    `json:"protocol,omitempty"`
	Command  string `json:"command"`
	Load     string `json:"load"`
	FsyncUS  int64  `json:"fsync_us"`
}

// recorder appends records to a file and prints them.
type recorder struct {
	file *os.File
	run  string
}

func newRecorder(path, scratch string) (*recorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	r := &recorder{f, time.Now().UTC().Format(time.RFC3339)}
	m, err := describe(scratch)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, r.write(record{Machine: m})
}

func (r *recorder) write(rec record) error {
	rec.Run = r.run
	line, err := json.Marshal(rec)
	if err == nil {
		_, err = r.file.Write(append(line, '\n'))
	}
	return err
}

func (r *recorder) close() error { return r.file.Close() }

// readRecords reads a results file.
func readRecords(path string) ([]record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []record
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var rec record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, len(list)+1, err)
		}
		list = append(list, rec)
	}
	return list, lines.Err()
}

// describe reads the machine's properties.
func describe(scratch string) (*machine, error) {
	m := &machine{CPUs: runtime.NumCPU(), Go: runtime.Version(), Command: "bench " + strings.Join(os.Args[1:], " ")}
	m.Model = firstLine("/proc/cpuinfo", "model name")
	m.Memory = firstLine("/proc/meminfo", "MemTotal")
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(raw))
	}
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = strings.Join(strings.Fields(string(raw))[:3], " ")
	}
	// A tree with changes is no commit: --dirty says so.
	if out, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	m.Protocol = fsm.ProtocolVersion
	took, err := fsyncTime(scratch)
	m.FsyncUS = took.Microseconds()
	return m, err
}

// firstLine returns the value of a name in a file of /proc.
func firstLine(path, name string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fsyncTime measures appending 4 KiB and syncing on the disk that all systems share, as the
// mean of a hundred.
func fsyncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "fsync-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	const count = 100
	page := make([]byte, 4096)
	begin := time.Now()
	for range count {
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return time.Since(begin) / count, nil
}
