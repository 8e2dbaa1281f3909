package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bivouac.dev/bivouac/cluster"
	"bivouac.dev/bivouac/fsm"
	"bivouac.dev/bivouac/httpapi/wire"
)

// healthyStatus is a cluster of three nodes with nothing wrong.
func healthyStatus() clusterStatus {
	s := clusterStatus{Address: "http://n1"}
	s.Status.Status = cluster.Status{
		Node:            "n1",
		ID:              "n1.a",
		State:           cluster.StateLeader,
		Term:            3,
		Leader:          "n1",
		LeaderID:        "n1.a",
		ProtocolVersion: 6,
		KnownVersion:    6,
	}
	s.Status.Ready, s.Status.Sandboxes = true, map[string]int{"RUNNING": 2}
	s.Status.Backup = fsm.Backup{File: "a.snap", Node: "n1", Time: time.Now()}
	for i := range 3 {
		name := fmt.Sprintf("n%d", i+1)
		role := cluster.RoleVoter
		if i == 0 {
			role = cluster.RoleLeader
		}
		m := cluster.Member{
			Server: cluster.Server{
				Name:    name,
				ID:      name + ".a",
				Address: "10.0.0.1:8441",
				Voter:   true,
			}, Role: role, State: "follower",
			KnownVersion: 6, AppliedIndex: 90, Lag: new(uint64(0)), LastContact: new(int64(40)), ClockAhead: new(int64(3)),
			ClockError: new(int64(5)),
			Report: &cluster.Report{
				Version: "v1", Ready: true, BackupInterval: 3600, Disks: []cluster.Disk{
					{Name: cluster.DiskData, Free: 50e9, Size: 100e9}, {Name: cluster.DiskBackup, Free: 50e9, Size: 100e9},
				},
				Certificates: []cluster.Certificate{
					{Name: "peer", DaysLeft: 25},
					{Name: "peer_ca", DaysLeft: 3000, Expires: time.Now().Add(3000 * day)},
				},
				Services: []cluster.Service{
					{Name: cluster.ServiceNomad, Reachable: true},
					{Name: cluster.ServiceVault, Reachable: true},
				},
			},
		}
		s.Members = append(s.Members, m)
	}
	return s
}

func TestStatus_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		do   func(*clusterStatus)
		// wrong and notice are parts of the only lines; "" for none.
		wrong, notice string
	}{
		{"healthy", func(*clusterStatus) {}, "", ""},
		{"sealed", func(s *clusterStatus) {
			for _, m := range s.Members {
				m.Report.Services[1] = cluster.Service{Name: cluster.ServiceVault, Sealed: true, Error: "sealed"}
			}
		}, "n1, n2, n3: Vault is sealed", ""},
		{"nomad", func(s *clusterStatus) {
			s.Members[1].Report.Services[0] = cluster.Service{Name: "nomad", Error: "refused"}
		},
			"n2: Nomad can't be reached: refused", ""},
		{
			"login",
			func(s *clusterStatus) { s.Members[2].Report.Services[1].Error = "secret id" },
			"n3: Vault refuses this node: secret id",
			"",
		},
		{"a secret id", func(s *clusterStatus) {
			s.Members[2].Report.Services[1].CredentialExpires = new(time.Now().Add(6 * day))
			s.Members[2].Report.Services[1].CredentialWarning = new(time.Now().Add(-day))
		}, "n3: its secret id in Vault ends on ", ""},
		{"a secret id of five days", func(s *clusterStatus) {
			s.Members[2].Report.Services[1].CredentialExpires = new(time.Now().Add(5 * day))
			s.Members[2].Report.Services[1].CredentialWarning = new(time.Now().Add(4 * day))
		}, "", ""},
		{
			"expired",
			func(s *clusterStatus) { s.Members[0].Report.Certificates[0].DaysLeft = -1 },
			`n1: the certificate "peer" expired on`,
			"",
		},
		{"expires", func(s *clusterStatus) { s.Members[0].Report.Certificates[0].DaysLeft = 9 }, "in 9 days", ""},
		{"ten days", func(s *clusterStatus) { s.Members[0].Report.Certificates[0].DaysLeft = 10 }, "", ""},
		{
			"full disk",
			func(s *clusterStatus) { s.Members[0].Report.Disks[0].Free = 9e9 },
			"n1: 8.38 GiB are left of 93.1 GiB for the data directory",
			"",
		},
		{"small disk", func(s *clusterStatus) {
			s.Members[0].Report.Disks[0] = cluster.Disk{Name: "data", Free: 9e8, Size: 1e9}
		}, "858 MiB are left", ""},
		{
			"no disk",
			func(s *clusterStatus) { s.Members[0].Report.Disks[0] = cluster.Disk{Name: "data", Error: "away"} },
			"n1: the data directory: away",
			"",
		},
		{"events", func(s *clusterStatus) { s.Members[1].EventsMissing = 3 << 20 }, "n2: lacks 3 MiB of events", ""},
		{"no room for events", func(s *clusterStatus) { s.Members[1].EventsFull = true },
			"n2: its disk has no room for events: all events are refused until it has 384 MiB", ""},
		{"events after a start", func(s *clusterStatus) { s.Members[1].EventsMissing = -1 }, "",
			"n2: does not know yet whether it lacks events"},
		{"lag", func(s *clusterStatus) { s.Members[1].Lag = new(uint64(5001)) }, "n2: lags 5001 log entries", ""},
		{
			"clock",
			func(s *clusterStatus) { s.Members[1].ClockAhead = new(int64(-61006)) },
			"n2: its clock is off by -1m1.006s (give or take 5ms)",
			"",
		},
		{
			"clock a little",
			func(s *clusterStatus) { s.Members[1].ClockAhead = new(int64(1200)) },
			"",
			"n2: its clock is off by 1.2s",
		},
		{"clock unsure", func(s *clusterStatus) {
			s.Members[1].ClockAhead, s.Members[1].ClockError = new(int64(1200)), new(int64(800))
		}, "", ""},
		{"hold", func(s *clusterStatus) { s.Status.Hold = &wire.Hold{More: 2} }, "HOLD since", ""},
		{"brake", func(s *clusterStatus) {
			s.Status.Removals = []wire.Removal{{Kind: "job", Removed: 9, BrakedAt: new(wire.At(time.Now())), Limit: new(8)}}
		}, "removals wait: 9 of kind job", ""},
		{
			"state",
			func(s *clusterStatus) { s.Status.Bytes.Used, s.Status.Bytes.Limit = 95, 100 },
			"the state has 95 bytes and takes 100",
			"",
		},
		{
			"not ready",
			func(s *clusterStatus) { s.Members[2].Report.Ready, s.Members[2].Report.Reason = false, "catching up" },
			"n3: not ready: catching up",
			"",
		},
		{"an older node", func(s *clusterStatus) { s.Members[2].Report = nil }, "", "n3: does not report"},
		{"versions", func(s *clusterStatus) { s.Members[2].Report.Version = "v2" }, "", "different versions"},
		{
			"protocol",
			func(s *clusterStatus) { s.Status.ProtocolVersion = 5 },
			"",
			"the cluster's protocol version is 5, and all nodes that answer know 6",
		},
		{
			"file",
			func(s *clusterStatus) { s.Members[2].Report.Differs = []string{"limits"} },
			"",
			"n3: the file differs from what is in force: limits",
		},
		{
			"isolation",
			func(s *clusterStatus) { s.Status.SpecsWithoutIsolation = []string{"raw"} },
			"",
			"not isolated from their machine: raw",
		},
		{"no backups", func(s *clusterStatus) {
			for _, m := range s.Members {
				m.Report.Disks, m.Report.BackupInterval = m.Report.Disks[:1], 0
			}
		}, "", "no node makes backups: set backup { dir }"},
		{"a node without backups", func(s *clusterStatus) {
			s.Members[1].Report.Disks = s.Members[1].Report.Disks[:1]
		}, "", "n2: makes no backups while it leads"},
		{"an old backup", func(s *clusterStatus) {
			s.Status.Backup.Time = time.Now().Add(-4 * time.Hour)
		}, "the newest backup is 4h0m0s old, and one is due every 1h0m0s", ""},
		{"an old backup by its interval", func(s *clusterStatus) {
			s.Status.Backup.Time, s.Members[0].Report.BackupInterval = time.Now().Add(-4*time.Hour), 24*3600
		}, "", ""},
		{"the backup fails", func(s *clusterStatus) {
			s.Status.Backup.Failure, s.Status.Backup.FailedNode = "permission denied", "n3"
		}, "the last backup failed, on n3 at ", ""},
		{"no place for backups", func(s *clusterStatus) {
			s.Members[0].Report.Disks[1].Error = "write /b: permission denied"
		}, "n1: no backup can be written: write /b: permission denied (bivouac runbook backup)", ""},
		{"first backup", func(s *clusterStatus) { s.Status.Backup = fsm.Backup{} }, "", "there is no backup yet"},
		{"error", func(s *clusterStatus) { s.Status.Sandboxes["ERROR"] = 4 }, "", "4 sandboxes are in ERROR"},
		{"a silent nonvoter", func(s *clusterStatus) {
			s.Members[2].Voter, s.Members[2].Error, s.Members[2].Report = false, "refused", nil
		},
			"n3: does not answer: refused", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := healthyStatus()
			test.do(&s)
			s.judge()
			one := func(what, want string, lines []string) {
				if want == "" && len(lines) > 0 || want != "" && (len(lines) != 1 || !strings.Contains(lines[0], want)) {
					t.Errorf("%s is not the one line with %q: %q", what, want, lines)
				}
			}
			one("wrong", test.wrong, s.Problems)
			one("notice", test.notice, s.Notices)
			var out strings.Builder
			if err := s.print(&out, time.Now()); err != nil ||
				strings.Contains(out.String(), "Nothing is wrong.") != (test.wrong == "") {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// The days of the secret id are a column of both tables.
func TestStatus_ShowsTheDaysOfSecretIDs(t *testing.T) {
	t.Parallel()
	s := healthyStatus()
	for i, left := range []time.Duration{12*day + time.Hour, -time.Hour} {
		s.Members[i].Report.Services[1].CredentialExpires = new(time.Now().Add(left))
	}
	var status, members strings.Builder
	if err := errors.Join(s.print(&status, time.Now()), printMembers(&members, s.Members)); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{status.String(), members.String()} {
		for _, part := range []string{"SECRET ID", "12d", "expired"} {
			if !strings.Contains(table, part) {
				t.Errorf("no %q in\n%s", part, table)
			}
		}
	}
}

// statusServer answers as a node with a healthy cluster.
func statusServer(t *testing.T) string {
	t.Helper()
	s := healthyStatus()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/members") {
			_ = json.NewEncoder(w).Encode(map[string]any{"items": s.Members})
			return
		}
		_ = json.NewEncoder(w).Encode(s.Status)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// openTerminal opens a pseudo-terminal: what is written to tty arrives at master.
func openTerminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close(); tty.Close() })
	return master, tty
}

// On a terminal each picture takes the place of the one before.
func TestStatus_WatchRedrawsOnATerminal(t *testing.T) {
	t.Parallel()
	master, tty := openTerminal(t)
	ctx, stop := context.WithCancel(t.Context())
	p := &program{stdout: tty, stderr: io.Discard, getenv: func(name string) string {
		return map[string]string{"BIVOUAC_API_KEY": "key"}[name]
	}}
	ended := make(chan int, 1)
	go func() {
		ended <- p.run(ctx, []string{"status", "--watch", "--interval", "100ms", "--address", statusServer(t)})
	}()
	var seen strings.Builder
	for b := make([]byte, 4096); strings.Count(seen.String(), "\x1b[J") < 3; {
		n, err := master.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(b[:n])
	}
	stop()
	if code := <-ended; code != exitOK {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{"\x1b[H", "n1 leads in term 3", "Nothing is wrong.\x1b[K"} {
		if strings.Count(seen.String(), want) < 3 {
			t.Errorf("not in each picture: %q in\n%q", want, seen.String())
		}
	}
}

// Into a pipe go no escapes, and SIGINT is an ordinary end.
func TestStatus_WatchIntoAPipeEndsWithAnInterrupt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeText(t, filepath.Join(dir, "key"), "key")
	c := startChild(t, dir, "status", "--watch", "--interval", "100ms", "--api-key-file", "key", "--address",
		statusServer(t))
	eventually(t, "two pictures", func() error {
		c.mustRun(t)
		if strings.Count(c.stdout.String(), "Nothing is wrong.") < 2 {
			return fmt.Errorf("%s", c.stdout.String())
		}
		return nil
	})
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := c.wait(t); code != exitOK || c.stderr.String() != "" || strings.Contains(c.stdout.String(), "\x1b") {
		t.Errorf("exit %d: %q %q", code, c.stdout.String(), c.stderr.String())
	}
}

// What one types first works with all nodes, with a silent one and without a leader.
func TestServer_StatusSaysWhatItKnows(t *testing.T) {
	t.Parallel()
	s := newServers(t, serverOptions{nomad: "http://" + freeAddress(t), vault: "http://" + freeAddress(t)})
	s.up(t, 0, 1, 2)
	flags := []string{"--address", s.nodes[0].base, "--api-key-file", s.keyFile}
	// until runs the command until it prints all of want, and returns the output.
	until := func(wantCode int, command string, want ...string) (text string) {
		t.Helper()
		eventually(t, command, func() error {
			code, stdout, stderr := runCommand(t, nil, append(strings.Fields(command), flags...)...)
			for _, w := range want {
				if !strings.Contains(stdout, w) {
					return fmt.Errorf("it lacks %q:\n%s%s", w, stdout, stderr)
				}
			}
			if text = stdout; code != wantCode {
				return fmt.Errorf("exit %d, want %d:\n%s", code, wantCode, stdout)
			}
			return nil
		})
		return text
	}
	text := until(exitWrong, "status", "n1, n2, n3: Nomad can't be reached: "+s.options.nomad+": dial tcp",
		"n1, n2, n3: Vault can't be reached: "+s.options.vault+": dial tcp", " leads in term ", "29d", "0 RUNNING")
	for _, row := range []string{"n1 ", "n2 ", "n3 "} {
		if !strings.Contains(text, "\n"+row) {
			t.Errorf("no row of %s:\n%s", row, text)
		}
	}
	fmt.Fprintln(t.Output(), text)
	var got clusterStatus
	if err := json.Unmarshal([]byte(until(exitWrong, "status --json")), &got); err != nil || len(got.Members) != 3 ||
		got.Healthy || len(got.Problems) < 2 {
		t.Errorf("%v: %+v", err, got)
	}
	for _, m := range got.Members {
		if m.Report == nil || len(m.Report.Certificates) != 2 || len(m.Report.Services) != 2 || m.Report.Disks[0].Size == 0 ||
			m.ClockAhead == nil {
			t.Errorf("%s reports %+v", m.Name, m)
		}
	}
	if table := until(exitOK, "operator members", "CERT", "29d"); strings.Count(table, "29d") != 3 {
		t.Errorf("operator members:\n%s", table)
	}

	// A stopped process holds its connections, and answers nothing.
	freeze := func(i int) {
		if err := s.nodes[i].process.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	freeze(2)
	until(exitWrong, "status", "n3: does not answer: ",
		"2 of 3 voters answer, 2 are needed: one more failure stops the cluster")
	freeze(1)
	text = until(exitWrong, "status", "no leader is known: nothing can be written; 1 of 3 voters answer, 2 are needed",
		"n1: not ready: no leader is known")
	fmt.Fprintln(t.Output(), text)
	if code, _, stderr := runCommand(t, nil, "status", "--address", "http://"+freeAddress(t), "--api-key-file",
		s.keyFile); code != exitFailed || !strings.Contains(stderr, "refused") {
		t.Errorf("a node that is away: exit %d: %s", code, stderr)
	}
	if code, _, stderr := runCommand(t, map[string]string{"BIVOUAC_API_KEY": "bvk_x"}, "status", "--address",
		s.nodes[0].base); code != exitFailed || !strings.Contains(stderr, "API key") {
		t.Errorf("an unknown key: exit %d: %s", code, stderr)
	}
}
