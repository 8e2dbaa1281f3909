package main

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"bivouac.dev/bivouac/httpapi/wire"
)

// doctorNode is a node whose Nomad and Vault answer nothing.
func doctorNode(t *testing.T) *checkedNode {
	n := newCheckedNode(t)
	text := strings.NewReplacer("https://nomad.example.org:4646", "http://127.0.0.1:1", "https://vault.example.org:8200",
		"http://127.0.0.1:1").Replace(checkedConfig)
	n.write("node.hcl", text, 0o644)
	if err := os.Mkdir(n.path("data"), 0o700); err != nil {
		t.Fatal(err)
	}
	return n
}

// doctor runs the command and returns the lines by their begin "result  subject: ".
func doctor(t *testing.T, env map[string]string, args ...string) (code int, out string) {
	t.Helper()
	code, out, stderr := runCommand(t, env, append([]string{"operator", "doctor"}, args...)...)
	if stderr != "" {
		t.Errorf("stderr: %s", stderr)
	}
	return code, out
}

// has fails unless one line begins and goes on so.
func has(t *testing.T, out, begin, part string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, begin) && strings.Contains(line, part) {
			return
		}
	}
	t.Errorf("no line %q with %q in\n%s", begin, part, out)
}

func TestDoctor_LooksAtTheMachine(t *testing.T) {
	t.Parallel()
	n := doctorNode(t)
	n.issue("n1", -day)
	code, out := doctor(t, nil, "--config", n.path("node.hcl"))
	if code != exitFailed {
		t.Errorf("exit %d", code)
	}
	has(t, out, "fail  peer.cert_file: ", " expired on ")
	has(t, out, "ok    http.tls.cert_file: ", "(for api.node.bivouac, server.bivouac), until ")
	has(t, out, "ok    peer.ca_file: ", " days left)")
	has(t, out, "", "data_dir: "+n.path("data")+": ") // ok, or a warning where this machine's disk is full
	has(t, out, "", " are left of ")
	has(t, out, "", "data_dir: "+n.path("data")+": a small write is on the disk after ")
	has(t, out, "fail  nomad: http://127.0.0.1:1 does not answer: ", "look at nomad { address }")
	has(t, out, "fail  vault: http://127.0.0.1:1 does not answer: ", "look at vault { address }")
	has(t, out, "warn  cluster: not asked: ", "an API key is needed")
	if left, err := os.ReadDir(n.path("data")); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	var got struct {
		Result string
		Checks []finding
	}
	if _, out = doctor(t, nil, "--json", "--config", n.path("node.hcl")); json.Unmarshal([]byte(out), &got) != nil ||
		got.Result != checkFail || len(got.Checks) < 15 {
		t.Errorf("--json: %s", out)
	}
}

// A file system that is full, and one with little room.
func TestDoctor_FullDisk(t *testing.T) {
	t.Parallel()
	n := doctorNode(t)
	dir := n.path("data")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skip("mounting a small file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	_, out := doctor(t, nil, "--config", n.path("node.hcl"))
	has(t, out, "fail  data_dir: "+dir+": 1 MiB are left of 1 MiB: the node stops when it is full", "")
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	_, checked, _ := runCommand(t, nil, "server", "--check", "--config", n.path("node.hcl"))
	has(t, checked, "warn  data_dir: "+dir+": 0 B are left: the node stops when it is full", "")
	code, out := doctor(t, nil, "--config", n.path("node.hcl"))
	has(t, out, "fail  data_dir: "+dir+": 0 B are left of ", "make room (bivouac runbook disk)")
	has(t, out, "fail  data_dir: "+dir+" can't be written: no space left on device", "")
	if code != exitFailed {
		t.Errorf("exit %d", code)
	}
}

func TestDoctor_JudgesADiskByItsWrites(t *testing.T) {
	t.Parallel()
	ms := func(list ...int) (took []time.Duration) {
		for _, n := range list {
			took = append(took, time.Duration(n)*time.Millisecond)
		}
		return took
	}
	for _, test := range []struct {
		took []time.Duration
		err  error
		want string
	}{
		{ms(1, 2, 3), nil, checkOK},
		{ms(1, 2, 251), nil, checkWarn},
		{ms(1, 26, 30), nil, checkWarn},
		{ms(1, 251, 300), nil, checkFail},
		{nil, &os.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, checkWarn},
		{nil, &os.PathError{Op: "write", Path: "x", Err: syscall.EIO}, checkFail},
		{nil, os.ErrDeadlineExceeded, checkFail},
	} {
		i := &inspection{}
		if i.syncs("data_dir", "data", test.took, test.err); len(i.found) != 1 || i.found[0].Result != test.want {
			t.Errorf("%v, %v: %+v, want %s", test.took, test.err, i.found, test.want)
		}
	}
}

// What the members report over HTTP becomes a line each, and clocks are compared.
func TestDoctor_LooksAtTheCluster(t *testing.T) {
	t.Parallel()
	s := healthyStatus()
	ahead, specs := time.Duration(0), `{"items":[{"id":"a","template":{"driver":"docker"}}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		switch {
		case strings.HasSuffix(r.URL.Path, "/members"):
			_ = json.NewEncoder(w).Encode(map[string]any{"items": s.Members})
		case strings.HasSuffix(r.URL.Path, "/status"):
			_ = json.NewEncoder(w).Encode(s.Status)
		case strings.HasSuffix(r.URL.Path, "/specs"):
			_, _ = w.Write([]byte(specs))
		}
	}))
	t.Cleanup(server.Close)
	for i := range s.Members {
		for k := range s.Members[i].Report.Certificates {
			s.Members[i].Report.Certificates[k].Expires = time.Now().Add(25 * day)
		}
	}
	env := map[string]string{"BIVOUAC_API_KEY": "key", "BIVOUAC_ADDR": server.URL}
	if code, out := doctor(t, env); code != exitOK || strings.Contains(out, "warn  ") || strings.Count(out, "\n") < 20 {
		t.Errorf("exit %d:\n%s", code, out)
	}
	ahead = 150 * time.Second
	m := s.Members
	m[0].Report.Disks[0].Free, m[0].Report.Differs = 1e8, []string{"limits: 1, 2 in force"}
	m[1].ClockAhead, m[1].Report.Certificates[0].Expires = new(int64(-5000)), time.Now().Add(-day)
	m[1].Report.Services[1] = cluster.Service{Name: cluster.ServiceVault, Sealed: true, Error: "sealed"}
	m[2].Error, m[2].Report = "connection refused", nil
	s.Status.Leader, s.Status.Hold = "", &wire.Hold{}
	code, out := doctor(t, env)
	if code != exitFailed {
		t.Errorf("exit %d", code)
	}
	for begin, part := range map[string]string{
		"fail  cluster.leader: no leader is known":                            "bivouac runbook members",
		"fail  clock: this machine's clock, beside that of n1, is off by -2m": "synchronise it (chrony, ntpd)",
		"ok    node n1: leader, version v1, protocol 6":                       "",
		"fail  node n1 disk: data: 95.4 MiB are left of 93.1 GiB":             "the node stops when it is full",
		"warn  node n1 file: differs from what is in force: limits":           "",
		"ok    node n1 certificate: peer, until ":                             "24 days left",
		"warn  node n2 clock: its clock is off by -5s (give or take 5ms)":     "",
		"fail  node n2 certificate: peer expired on ":                         "bivouac runbook certificates",
		"fail  node n2 vault: sealed":                                         "unseal it",
		"fail  node n3: it does not answer: connection refused":               "start it",
		"warn  cluster.state: HOLD since ":                                    "bivouac runbook hold",
	} {
		has(t, out, begin, part)
	}
	// A node that can't be asked, with a file that says where it is.
	n := doctorNode(t)
	_, out = doctor(t, map[string]string{"BIVOUAC_API_KEY": "key"}, "--config", n.path("node.hcl"))
	has(t, out, "fail  cluster: asking https://127.0.0.1:8440: ", "--address")
	// This file beside the members.
	_, out = doctor(t, env, "--config", n.path("node.hcl"))
	has(t, out, "warn  peer.advertise: the members know n1 at \"10.0.0.1:8441\", the file says 127.0.0.1:8441", "")
	n.edit(`node_name        = "n1"`, `node_name = "n7"`)
	_, out = doctor(t, env, "--config", n.path("node.hcl"))
	has(t, out, `warn  node_name: "n7" is no member of the cluster yet`, "")
	if code, _, stderr := runCommand(t, nil, "operator", "doctor"); code != exitUsage ||
		!strings.Contains(stderr, "an API key is needed") {
		t.Errorf("with neither a file nor a key: exit %d: %s", code, stderr)
	}
}

// statusAndDoctor: with the real Nomad and Vault nothing is wrong but what the machine itself lacks.
func (s *stack) statusAndDoctor(t *testing.T) {
	flags := []string{"--address", s.nodes[0].base, "--api-key-file", s.keyFile}
	eventually(t, "every node sees Nomad and Vault", func() error {
		_, out, stderr := runCommand(t, nil, append([]string{"status"}, flags...)...)
		if strings.Count(out, "  ok     ok\n") != 3 || strings.Contains(out, "Nomad ") || strings.Contains(out, "Vault ") {
			return errors.New(out + stderr)
		}
		return nil
	})
	_, out := doctor(t, nil, append([]string{"--config", s.nodes[1].config}, flags...)...)
	fmt.Fprintln(t.Output(), out)
	for line := range strings.Lines(out) {
		bad := !strings.HasPrefix(line, "ok    ")
		for _, may := range []string{
			"disk: ",
			"data_dir: ",
			"nomad.docker_network: ",
			"nomad.token: Nomad's ACLs are off",
			"cluster.state: ",
			"backup.dir: not set",
		} {
			bad = bad && !strings.Contains(line, may)
		}
		if bad {
			t.Errorf("the doctor says: %s", line)
		}
	}
	has(t, out, "ok    nomad.version: servers: ", "")
	has(t, out, "ok    nomad.drivers: raw_exec on every client", "")
	has(t, out, "ok    vault.permission: ", " on secret/destroy/bivouac/*")
	has(t, out, "ok    node_name: n2 is a member, at ", "")
	has(t, out, "ok    config: differs from the cluster's configuration in nothing", "")
	has(t, out, "ok    clock: this machine's is that of n1, within ", "")
}
